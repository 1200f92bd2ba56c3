"""When to stop asking: the endpoint is dead, refuses us, or calls every request wrong.

One bad reply means nothing, whatever it says: a broken balancer answers 404 now and then. What
counts is that nothing succeeds in between.
"""

import time
from collections import Counter

from configs.engines import EngineSettings
from training.engines.endpoint_errors import HOPELESS, Fatal

FIRST_CONTACT_S = 30.0
"""An endpoint that never answered and takes no connection for this long is not there."""
HOPELESS_IN_A_ROW = 3
SERVED_SHOWN = 8


class Breaker:
    """Counts what happens to the requests of one run; its methods raise Fatal."""

    def __init__(self, settings: EngineSettings) -> None:
        self.url, self.model = settings.base_url, settings.model
        self.runtime = settings.runtime
        self.answered = 0
        self.failures: Counter[str] = Counter()
        """Requests that were given up, by reason."""
        self.troubles: Counter[str] = Counter()
        """Attempts that failed and were tried again, by reason."""
        self.last_words = ""
        """What the server said to the last attempt it refused; it holds no key."""
        self._failed_in_a_row = self._hopeless_in_a_row = 0
        self._began = time.monotonic()

    def success(self) -> None:
        self.answered += 1
        self._failed_in_a_row = self._hopeless_in_a_row = 0

    def given_up(self, reason: str) -> None:
        """A request failed for good."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.runtime.failures_in_a_row:
            raise Fatal(
                f"{self.url}: {self._failed_in_a_row} requests in a row failed, the last with "
                f"{reason}; {self.figures()}; finished answers are kept"
            )

    def hopeless(self) -> bool:
        """One more status of `HOPELESS`; whether there were enough of them in a row."""
        self._hopeless_in_a_row += 1
        return self._hopeless_in_a_row >= HOPELESS_IN_A_ROW

    def no_connection(self, reason: str) -> None:
        waited = time.monotonic() - self._began
        if not self.answered and waited > FIRST_CONTACT_S:
            raise Fatal(
                f"{self.url}: {reason} for {waited:.0f} s: is the server up, and is base_url right?"
            )

    def refusal(self, status: int, served: list[str] | None) -> Fatal:
        """The line about a status of `HOPELESS`; `served`: the models that a 404 does have."""
        line = f"{HOPELESS[status]} (HTTP {status}) by {self.url} for model {self.model}"
        if status == 404 and served is None:
            line += "; base_url usually ends in /v1"
        elif status == 404 and served is not None:
            line += f"; it serves: {', '.join(served[:SERVED_SHOWN]) or 'nothing'}"
        return Fatal(line)

    def figures(self) -> str:
        tried = ", ".join(f"{n} x {reason}" for reason, n in self.troubles.most_common(5))
        return f"{self.answered} answered; tried again: {tried or 'nothing'}"

    def summary(self) -> str:
        reasons = ", ".join(f"{n} x {reason}" for reason, n in self.failures.most_common(5))
        said = f"; it said: {self.last_words}" if self.last_words else ""
        return (
            f"{self.url}: {self.failures.total()} requests failed after "
            f"{self.runtime.max_retries} retries each ({reasons}{said}); finished answers are "
            "kept, run again for the rest"
        )
