"""What a medium holds, and the pieces of what was written that may reach it each by itself."""

from dataclasses import dataclass, replace
from enum import Enum, auto

SECTOR = 512
_ZEROS = bytes(SECTOR)


class PieceKind(Enum):
    DATA = auto()
    RESIZE = auto()
    GROW = auto()
    ALLOCATE = auto()
    PUNCH = auto()
    GARBAGE = auto()
    """What an interrupted write made of a unit of the medium that it touched."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that reaches the medium whole or not at all.

    `offset` is the place of data or of a hole, and the size for RESIZE, GROW and ALLOCATE; `length`
    the length of data or of a hole.  `seq` numbers the operation it comes from.
    """

    seq: int
    kind: PieceKind
    offset: int
    length: int = 0
    data: bytes = b""
    stage: bool = False
    limbo: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length


class Medium:
    """What the medium holds for sure, in two readings of space the file only grew over.

    `stale` False: that space is zeros; True: it keeps what lay there, or `filler` where nothing did.
    `digest` names the contents: equal files have equal ones.  It is kept up sector by sector, so
    that naming a state costs what its pieces touch and not the whole file.
    """

    def __init__(self, base: bytes, *, stale: bool) -> None:
        self.raw = bytearray(base)
        self.size = len(base)
        self.stale = stale
        self.filler = base[8192 : 8192 + 65536].ljust(SECTOR, b"\xa5")
        self._hashes: dict[int, int] = {}
        self._digest = 0
        self._touched = set(range(-(-self.size // SECTOR)))
        self._undo: list[tuple[int, bytes, int]] = []
        self.commit()

    def apply(self, piece: Piece) -> None:
        old = self.size
        match piece.kind:
            case PieceKind.DATA | PieceKind.GARBAGE:
                self._put(piece.offset, piece.data)
            case PieceKind.PUNCH:
                end = min(piece.end, len(self.raw))
                if end > piece.offset:
                    self._put(piece.offset, bytes(end - piece.offset))
            case PieceKind.RESIZE if piece.offset < old:
                self._undo.append((0, b"", old))
                self.size = piece.offset
            case _ if piece.offset > old:
                if piece.kind is PieceKind.ALLOCATE or not self.stale:
                    self._put(old, bytes(piece.offset - old))
                self._room(piece.offset)
                self._undo.append((0, b"", old))
                self.size = piece.offset
            case _:
                pass
        lo, hi = sorted((old, self.size))
        if lo < hi:
            self._touched.update(range(lo // SECTOR, (hi - 1) // SECTOR + 1))

    def commit(self) -> None:
        """Let stand what was applied."""
        self._digest = self._digest_with(self._hashes)
        self._touched.clear()
        self._undo.clear()

    def revert(self) -> None:
        """Undo what was applied since the last commit."""
        for offset, before, size in reversed(self._undo):
            self.raw[offset : offset + len(before)] = before
            self.size = size
        self._undo.clear()
        self._touched.clear()

    def digest(self) -> int:
        return hash((self._digest_with({}), self.size))

    def image(self) -> bytearray:
        return self.raw[: self.size]

    def _put(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self._room(end)
        self._undo.append((offset, bytes(self.raw[offset:end]), self.size))
        self.raw[offset:end] = data
        self._touched.update(range(offset // SECTOR, (end - 1) // SECTOR + 1))

    def _room(self, end: int) -> None:
        missing = end - len(self.raw)
        if missing > 0:
            if self.stale:
                self.raw += (self.filler * (missing // len(self.filler) + 1))[:missing]
            else:
                self.raw += bytes(missing)

    def _digest_with(self, hashes: dict[int, int]) -> int:
        """The digest; the hashes of the sectors touched since the last commit go into `hashes`."""
        digest = self._digest
        before = self._hashes.get
        with memoryview(self.raw) as raw:
            for sector in self._touched:
                start = sector * SECTOR
                data = bytes(raw[start : min(start + SECTOR, self.size)])
                name = 0 if data == _ZEROS[: len(data)] else hash((sector, data))
                digest ^= before(sector, 0) ^ name
                hashes[sector] = name
        return digest


def is_size(piece: Piece) -> bool:
    return piece.kind in (PieceKind.RESIZE, PieceKind.GROW, PieceKind.ALLOCATE)


def overlaps(piece: Piece, lo: int, hi: int) -> bool:
    return not is_size(piece) and piece.offset < hi and piece.end > lo


def uncovered(old: Piece, new: Piece) -> list[Piece]:
    """What remains of a piece when a later one is durable."""
    if old.seq >= new.seq or not overlaps(old, new.offset, new.end) or is_size(new):
        return [old]
    rest = []
    for lo, hi in ((old.offset, new.offset), (new.end, old.end)):
        if lo < hi:
            data = old.data[lo - old.offset : hi - old.offset]
            rest.append(replace(old, offset=lo, length=hi - lo, data=data))
    return rest
