"""Where compiled code is kept, seen from processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = """
from tasks.data.compiled import compiled

@compiled("int64(int64)")
def twice(x):
    return 2 * x
"""
PROGRAM = "import doubling; print(doubling.twice(21), *doubling.twice.stats.cache_hits.values())"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "doubling.py").write_text(MODULE)
    return folder


def run(source: Path, **variables: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "HOME"))}
    environment = kept | {"PYTHONPATH": f"{source}:{ROOT}", **variables}
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM],
        cwd=source, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def files(folder: Path) -> list[str]:
    return sorted(p.suffix for p in folder.rglob("*") if p.is_file())


def test_code_is_kept_in_the_users_cache_and_not_beside_the_source(source: Path, tmp_path: Path):
    assert run(source, XDG_CACHE_HOME=str(tmp_path / "cache")) == "42"
    assert files(source) == [".py"]
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.nbc")}
    assert len(kept) == 1
    assert run(source, XDG_CACHE_HOME=str(tmp_path / "cache")) == "42"
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


def test_a_folder_that_cannot_be_written_and_damage_in_one_are_no_error(
    source: Path, tmp_path: Path
):
    blocked, chosen = tmp_path / "a file", tmp_path / "chosen"
    blocked.write_text("no folder")
    assert run(source, XDG_CACHE_HOME=str(blocked), HOME=str(blocked)) == "42"
    assert files(source) == [".py"]
    run(source, NUMBA_CACHE_DIR=str(chosen))
    assert files(chosen) == [".nbc", ".nbi"]
    for path in chosen.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:20])
    assert run(source, NUMBA_CACHE_DIR=str(chosen)) == "42"
