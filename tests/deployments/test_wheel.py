"""klear as a package of somebody else's environment: one name, and all that it reads beside it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel alone; it finds what klear needs in that of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".git", ".venv*", ".klear", "build", "tests", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=ignored)
    wheel = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run([*PIP, *wheel], check=True)
    (built,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [*PIP, f"--python={python}", "install", "--quiet", "--no-deps", built], check=True
    )
    (site,) = folder.glob("venv/lib/*/site-packages")
    (site / "needed.pth").write_text(next(p for p in sys.path if p.endswith("site-packages")))
    return site


def said(installed: Path, folder: Path, *words: str) -> str:
    command = [installed.parents[2] / "bin" / words[0], *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_brings_one_package_and_its_command(installed: Path, tmp_path: Path) -> None:
    brought = {p.name for p in installed.iterdir()} - {"needed.pth", "__pycache__"}
    assert {name.partition("-")[0] for name in brought} == {"klear"}
    assert "klear" in said(installed, tmp_path, "klear", "--version")
    assert "rl_code" in said(installed, tmp_path, "klear", "plan", "paper")


def test_the_trainer_the_losses_and_the_judge_are_imported_by_the_names_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    code = (
        "from klear.training.rl.trainer import GPPOTrainer\n"
        "from klear.training.losses import gppo\n"
        "from klear.eval.judge.judge import Judge\n"
        "print(GPPOTrainer.__module__, Judge.__module__, gppo.__code__.co_filename)"
    )
    trainer, judge, file = said(installed, tmp_path, "python", "-c", code).split()
    assert (trainer, judge) == ("klear.training.rl.trainer", "klear.eval.judge.judge")
    assert Path(file).is_relative_to(installed)


def test_every_file_that_the_code_reads_beside_itself_is_there(installed: Path) -> None:
    code = [ROOT / name for name in ("configs", "eval", "training", "tasks", "flows")]
    read = {p.relative_to(ROOT) for folder in code for p in folder.rglob("*.*") if p.is_file()}
    written = {"README.md", "RESULTS.md", "RESULTS.jsonl", "RESULTS.svg"}
    left_out = {p for p in read if not (installed / "klear" / p).exists()}
    assert not [p for p in left_out if "__pycache__" not in p.parts and p.name not in written]
