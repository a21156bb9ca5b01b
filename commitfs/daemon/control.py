"""A socket at which ``commitfs umount`` waits for the daemon's last word.

The kernel's umount does not wait for a daemon, so whoever wants to know when all is durable, and
whether it is, connects first, unmounts, and reads: one JSON line, ``{"error": null}`` or with the
reason, sent when the store is closed.  The end of the stream without a line is a daemon that died.

The address is abstract, so that nothing is left behind, and named after the device number of the
mounted file system, which is unique among those mounted now.
"""

import errno
import json
import os
import signal
import socket
import struct
from contextlib import suppress

import trio

from commitfs.daemon.mountinfo import Mount
from commitfs.errors import CommitfsError

PATIENCE = 5.0
"""Seconds a daemon gets to end by itself after its mount is gone."""
RETRY = 0.05
"""Seconds between tries: for an address that the daemon of an earlier mount has not given up yet, and to
take somebody in when there was no descriptor for it."""
MOST = 32
"""Connections kept at a time, and looked at in one go; further ones wait in the kernel's queue."""
QUEUE = 64
"""Length of that queue."""


def _address(device: str) -> bytes:
    return b"\0commitfs/" + device.encode("ascii")


class Control:
    """The daemon's end.  Waits for root and for the user it runs as, who mounted; others are turned away."""

    def __init__(self) -> None:
        self._trusted = (0, os.geteuid())
        self._listener: socket.socket | None = None
        self._clients: list[socket.socket] = []

    async def run(self, device: str) -> None:
        """Take in those who wait, until cancelled."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener = listener
        while True:
            try:
                listener.bind(_address(device))
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise
                await trio.sleep(RETRY)
            else:
                break
        listener.listen(QUEUE)
        while True:
            await trio.lowlevel.wait_readable(listener)
            self._clients = [client for client in self._clients if _waits(client)]
            if not self._take_in():
                # The listener stays readable: not to look at it again at once.
                await trio.sleep(RETRY)

    def finish(self, error: str | None) -> None:
        """Tell everybody how it ended: `error` is None when everything is durable."""
        line = json.dumps({"error": error}).encode("ascii") + b"\n"
        for _ in range(QUEUE // MOST + 2):
            self._take_in()
            clients, self._clients = self._clients, []
            for client in clients:
                with client, suppress(OSError):
                    client.send(line)
        if self._listener is not None:
            self._listener.close()

    def _take_in(self) -> bool:
        """Accept those who have connected; False: somebody still waits for that, there being no room."""
        if self._listener is None:
            return True
        for _ in range(MOST):
            if len(self._clients) >= MOST:
                break
            try:
                client, _ = self._listener.accept()
            except OSError as exc:
                # EINVAL: the address was never free, so nobody can have connected.
                return exc.errno in (errno.EAGAIN, errno.EINVAL)
            if _user(client) in self._trusted:
                client.setblocking(False)
                self._clients.append(client)
            else:
                client.close()
        return False


def _user(peer: socket.socket) -> int:
    """uid of the process at the other end."""
    _, uid, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _waits(client: socket.socket) -> bool:
    """Whether the other end is still there; closes this end if not."""
    try:
        gone = client.recv(1) == b""
    except BlockingIOError:
        return True
    except OSError:
        gone = True
    if gone:
        client.close()
    return not gone


class Waiter:
    """The end of one who waits: made before unmounting, asked afterwards."""

    def __init__(self, mount: Mount) -> None:
        """Raises OSError when no daemon of the mount's owner listens."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(_address(mount.device))
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.pid, uid, _ = struct.unpack("iII", credentials)
            if uid not in (0, mount.owner):
                # Anybody can take an abstract address.
                raise PermissionError(errno.EPERM, "another user's process listens for this mount")
        except OSError:
            self._socket.close()
            raise

    def wait(self) -> None:
        """Return when everything is durable; raises CommitfsError when it is not."""
        with self._socket:
            line = self._line()
        if not line.endswith(b"\n"):
            raise CommitfsError(
                f"the daemon (process {self.pid}) died before its last commit; "
                "what was closed or synced is durable, changes of the last moments may be missing"
            )
        error = json.loads(line)["error"]
        if error is not None:
            raise CommitfsError(f"unmounted, but the last commit failed: {error}")

    def _line(self) -> bytes:
        """What the daemon says at its end, up to the newline; less if it died before."""
        said = b""
        self._socket.settimeout(PATIENCE)
        while not said.endswith(b"\n"):
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                # A copy of the mount lives on in another mount namespace (a container's, say), so the
                # kernel does not end the session.  Asked to, the daemon commits all and goes.
                with suppress(OSError):
                    os.kill(self.pid, signal.SIGTERM)
                self._socket.settimeout(None)
                continue
            except OSError:
                break
            if not part:
                break
            said += part
        return said

    def close(self) -> None:
        self._socket.close()
