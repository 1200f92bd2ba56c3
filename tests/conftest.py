"""For every test: a busy machine is no failed property."""

import time
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("klear", deadline=None)
settings.load_profile("klear")

TRIES = 4


@pytest.fixture(scope="session")
def quickest() -> Callable[..., float]:
    """`quickest(work, below=seconds)`: CPU seconds of the first call below the bound, else of the
    best of a few calls. A stalled machine makes a call slow; only slow code makes all of them."""

    def measure(work: Callable[[], object], below: float) -> float:
        best = float("inf")
        for _ in range(TRIES):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
            if best < below:
                break
        return best

    return measure
