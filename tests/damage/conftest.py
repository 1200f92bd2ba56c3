"""One store of three real stages, made once; each test damages a copy of its own."""

import shutil
from pathlib import Path

import pytest
from damage.three_stages import run_all


@pytest.fixture(scope="session")
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
