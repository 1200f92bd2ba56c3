"""What can go wrong between us and an endpoint, and what it means for a request."""

import email.utils
import random
import time
from typing import Any

import openai

from training.engines.endpoint_reply import BrokenReply

FIRST_DELAY_S, LONGEST_DELAY_S, LONGEST_ASKED_DELAY_S = 0.5, 60.0, 900.0
HOPELESS = {
    401: "the key is refused",
    402: "the account has no credit left",
    403: "access is refused",
    404: "no such model or URL",
}
"""Statuses that no waiting changes; a broken balancer sends one now and then all the same."""
OVERLOADED = (429, 503)
TRANSIENT = (408, 409, 425, 429)
CAUGHT = (openai.APIError, TimeoutError, BrokenReply)
"""Everything that sending a request and reading its reply may raise."""


class Fatal(Exception):
    """No request of this run can succeed."""


class Failed(Exception):
    """One request was given up; another run may ask again."""


class Unanswerable(Exception):
    """The endpoint says that this very request is wrong: asking again is useless."""


def reason_of(error: BaseException) -> str:
    """A few words that are equal for equal troubles."""
    if isinstance(error, openai.APIStatusError):
        return f"HTTP {error.status_code}"
    if isinstance(error, BrokenReply):
        return str(error)
    if isinstance(error, (openai.APITimeoutError, TimeoutError)):
        return "time-out"
    if isinstance(error, openai.APIConnectionError):
        return f"no connection ({root_of(error)})"
    return type(error).__name__


def root_of(error: BaseException) -> str:
    """The first cause: `Connection refused` rather than what each layer made of it."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__


def backoff(attempt: int, asked: float | None, jitter: float | None = None) -> float:
    """Seconds to wait: what the server asked for, else 0.5 s doubled each time, ± 50 %."""
    if asked is not None:
        return min(asked, LONGEST_ASKED_DELAY_S)
    spread = random.random() if jitter is None else jitter
    return min(FIRST_DELAY_S * 2**attempt, LONGEST_DELAY_S) * (0.5 + spread)


def asked_wait(error: BaseException) -> float | None:
    """Seconds the server asks us to wait, if it answered and said so."""
    if isinstance(error, openai.APIStatusError):
        return retry_after(error.response.headers)
    return None


def retry_after(headers: Any) -> float | None:
    """The Retry-After header as seconds from now; None when absent or unreadable."""
    text = headers.get("retry-after")
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())
