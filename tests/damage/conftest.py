"""One store of three real stages, made once; each test damages a copy of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage.three_stages import run_all

from klear.tasks.engine import cache
from tests.conftest import compute_here


@pytest.fixture(scope="module", autouse=True)
def stages_in_this_process() -> Iterator[None]:
    """Which tells a damage as any other does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "run_process", compute_here)
        yield


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("made") / "store"
    lines = run_all(store)
    assert set(lines.outcome.values()) == {"computed"}
    return store.parent


@pytest.fixture
def store(baseline: Path, tmp_path: Path) -> Path:
    """A copy of the store, with the file of problems beside it under the same name."""
    shutil.copytree(baseline, tmp_path / "copy")
    return tmp_path / "copy" / "store"
