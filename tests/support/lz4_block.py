"""LZ4 blocks in plain Python: what the C library writes is held against the format's own description."""


def decompress(block: bytes, size: int) -> bytes:
    """What `block` stands for; `ValueError` if it is none of at most `size` bytes.

    Laxer than the library about how a block may end.
    """
    out = bytearray()
    at = 0
    try:
        while True:
            token = block[at]
            at += 1
            literals, at = _length(block, at, token >> 4)
            if at + literals > len(block):
                raise ValueError("literals end behind the block")
            out += block[at : at + literals]
            at += literals
            if at == len(block):
                break
            back = block[at] | block[at + 1] << 8
            length, at = _length(block, at + 2, token & 15)
            if not 1 <= back <= len(out):
                raise ValueError("match begins before the data")
            if len(out) + length > size:
                raise ValueError("too long")
            for _ in range(length + 4):
                out.append(out[-back])
    except IndexError:
        raise ValueError("the block ends early") from None
    if len(out) > size:
        raise ValueError("too long")
    return bytes(out)


def _length(block: bytes, at: int, begun: int) -> tuple[int, int]:
    if begun == 15:
        while True:
            more = block[at]
            at += 1
            begun += more
            if more != 255:
                break
    return begun, at


def literals_only(data: bytes) -> bytes:
    """A block that says `data` without compressing it."""
    rest = len(data) - 15
    lengths = b"" if rest < 0 else b"\xff" * (rest // 255) + bytes([rest % 255])
    return bytes([min(len(data), 15) << 4]) + lengths + data


def one_byte_repeated(byte: bytes, size: int) -> bytes:
    """A short block for `size` (at least 20) times the same byte."""
    rest = size - 1 - 5 - 4 - 15
    match = b"\xff" * (rest // 255) + bytes([rest % 255]) if rest >= 0 else b""
    token = 1 << 4 | min(size - 1 - 5 - 4, 15)
    return bytes([token]) + byte + b"\x01\x00" + match + literals_only(byte * 5)
