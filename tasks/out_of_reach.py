"""What an error of the tracking server says about it: out of reach, stumbling, or refusing."""

import re
from collections.abc import Iterator

import requests

OUT_OF_REACH = frozenset({502, 503, 504})
"""What a proxy says for a server that is down, and a server that is starting or too busy."""
_STATUS = re.compile(r"(?:failed with error code|too many) (\d{3})\b")


def is_away(error: Exception) -> bool:
    """Whether the server did not answer, as opposed to answering with an error."""
    return any(
        isinstance(e, (requests.exceptions.ConnectionError, requests.exceptions.Timeout))
        or _status(e) in OUT_OF_REACH
        for e in _chain(error)
    )


def has_stumbled(error: Exception) -> bool:
    """Whether the server failed at its own work (500): it may know better in a moment, or never."""
    return not is_away(error) and any(_status(e) == 500 for e in _chain(error))


def may_pass(error: Exception) -> bool:
    """Whether the error says nothing about what was asked."""
    return is_away(error) or has_stumbled(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _status(error: BaseException) -> int:
    """The HTTP status behind an error, which MLflow mostly gives in words; 0 if there is none."""
    known = getattr(getattr(error, "response", None), "status_code", 0)
    if known:
        return known
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0
