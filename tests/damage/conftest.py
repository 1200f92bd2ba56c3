"""One store of three real stages, made once; each test damages a copy of its own."""

import shutil
from pathlib import Path

import pytest
from damage.three_stages import run_all


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("made") / "store"
    lines = run_all(store)
    assert set(lines.outcome.values()) == {"computed"}
    return store.parent


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy of the store, with the file of problems beside it under the same name."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "store"
