"""What programs saved and were told, and what may be found of it afterwards."""

from dataclasses import dataclass, field

Version = bytes | None
"""Contents of a file; None: there is none of that name."""


@dataclass(slots=True)
class _Name:
    versions: list[Version]
    """Every state that was asked for, oldest first."""
    acknowledged: int = 0
    """Index of the newest of them that was acknowledged."""
    cut: set[int] = field(default_factory=set)
    """Indices of those of which a beginning is what the program itself saved: a write was refused, and it
    closed the file all the same."""


class Ledger:
    """Versions by name.  What is not known by name was never there."""

    def __init__(self) -> None:
        self.names: dict[bytes, _Name] = {}
        self.told = 0
        """How many acts were refused."""

    def attempt(self, name: bytes, version: Version) -> None:
        """A program is about to bring `name` to this state."""
        self.names.setdefault(name, _Name([None])).versions.append(version)

    def done(self, name: bytes) -> None:
        """It was told that its last attempt is durable."""
        known = self.names[name]
        known.acknowledged = len(known.versions) - 1

    def refused(self, name: bytes, *, cut: bool = False) -> None:
        """It was told that its last attempt failed; `cut`: it may have saved a beginning of it."""
        known = self.names[name]
        if cut:
            known.cut.add(len(known.versions) - 1)
        self.told += 1

    def settled(self, name: bytes) -> bool:
        """Whether the last attempt was acknowledged, so that only its version may be seen."""
        known = self.names[name]
        return known.acknowledged == len(known.versions) - 1

    def newest(self, name: bytes) -> Version:
        return self.names[name].versions[-1]

    def verdict(self, name: bytes, found: Version) -> str:
        """What it means that a name holds this, in the newest state: "" as it should be, ``lost`` where
        something acknowledged is not there, ``half`` where it is no state anybody asked for."""
        if name not in self.names:
            return "half"
        known = self.names[name]
        if self._among(known, found, known.acknowledged):
            return ""
        return "lost" if self._among(known, found, 0) else "half"

    def ever(self, name: bytes, found: Version) -> bool:
        """Whether the name was ever asked to hold this, so that an old commit may."""
        return name in self.names and self._among(self.names[name], found, 0)

    @staticmethod
    def _among(known: _Name, found: Version, since: int) -> bool:
        for index in range(since, len(known.versions)):
            version = known.versions[index]
            if found == version:
                return True
            if index in known.cut and version is not None and found == version[: len(found or b"")]:
                return True
        return False
