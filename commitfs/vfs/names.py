"""What a commit may be called: one grammar for the mount and the command line.

42, 00000042        an id
latest, latest~3    the newest commit, the third before it
main                the branch: its newest commit
2026-11-30, 2026-11-30T14:00[:00[.5]][Z|+01:00]     the newest commit not after that time (local
                    time unless a zone is given)
@GMT-2026.11.30-14.00.00                            the same in UTC, as Samba writes it
"""

import re
from datetime import UTC, datetime, timedelta

from commitfs.errors import NotFoundError, UsageError
from commitfs.format.record import Record
from commitfs.store.store import Store

ID_WIDTH = 8
BRANCH = "main"
_ID = re.compile(r"[0-9]{1,19}")
_BACK = re.compile(r"(latest|main)(?:~([0-9]{1,19}))?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?")
_GMT = "@GMT-%Y.%m.%d-%H.%M.%S"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def id_name(commit: int) -> str:
    """The name of a commit's directory."""
    return f"{commit:0{ID_WIDTH}d}"


def time_ns(text: str) -> int | None:
    """The last nanosecond that `text`, a time, can mean; None if it is no time.

    A time without seconds or without a time of day means the beginning of what it names.
    """
    try:
        if text.startswith("@GMT-"):
            moment = datetime.strptime(text, _GMT).replace(tzinfo=UTC)
            whole_second = True
        elif _TIME.fullmatch(text):
            moment = datetime.fromisoformat(text)
            whole_second = moment.microsecond == 0
            if moment.tzinfo is None:
                moment = moment.astimezone()
        else:
            return None
    except (ValueError, OverflowError):
        return None
    since = moment - _EPOCH
    micros = since // timedelta(microseconds=1)
    return micros * 1000 + (999_999_999 if whole_second else 999)


def resolve(store: Store, text: str) -> Record:
    """The commit that `text` names.  Raises NotFoundError, or UsageError when it is no name at all."""
    if store.head is None:
        raise NotFoundError("the store has no commit yet")
    newest = int(store.head.id)
    if _ID.fullmatch(text):
        return store.record(int(text))
    back = _BACK.fullmatch(text)
    if back:
        wanted = newest - int(back[2] or 0)
        if wanted < store.oldest_id:
            raise NotFoundError(f"there are not that many commits before the newest ({newest})")
        return store.record(wanted)
    when = time_ns(text)
    if when is None:
        raise UsageError(f"{text!r} names no commit: give an id, latest, latest~N, main or a time")
    return store.record_at(when)
