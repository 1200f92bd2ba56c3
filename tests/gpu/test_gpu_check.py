"""`make gpu-check` on a machine without a GPU: what it can run passes, the rest is skipped by name;
whatever happens to a case, the others go on. And the bundle: its tree is enough for T0."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import bundle, check

ROOT = Path(__file__).parents[2]


def run(
    tmp_path: Path, tier: str, *words: str, root: Path = ROOT
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, lines by case, and what it printed."""
    log = tmp_path / "GPU.jsonl"
    command = [sys.executable, "-m", "tests.gpu.check", tier, "--log", str(log), *words]
    # A stage that ran in this process has set PYTHONSAFEPATH, which hides `tests`.
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "", "PYTHONSAFEPATH": ""}
    done = subprocess.run(command, cwd=root, env=hidden, capture_output=True, text=True)
    assert log.exists(), done.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return done.returncode, {line["case"]: line for line in lines}, done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The checkout as the bundle has it."""
    folder = tmp_path / "tree"
    for name in bundle.tree():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    (folder / "COMMIT").write_text("as-bundled")
    return folder


@pytest.mark.system
def test_cases_of_t0_pass_on_the_cpu_or_are_skipped_by_name_also_in_the_bundles_tree(
    tmp_path, tree
):
    only = ("--only", "loss", "packed_is_padded[sdpa]", "packed_is_padded[flash_attention_2]")
    code, lines, printed = run(tmp_path, "0", *only, root=tree)
    assert code == 0, printed
    outcomes = {name: (line["result"], line["reason"]) for name, line in lines.items()}
    assert outcomes == {
        "loss_gradients": ("pass", ""),
        "packed_is_padded[sdpa]": ("pass", ""),
        "packed_is_padded[flash_attention_2]": ("skip", "needs CUDA"),
    }
    assert "2 pass, 0 fail, 1 skip, on no GPU" in printed
    assert {(line["gpu"], line["commit"]) for line in lines.values()} == {(None, "as-bundled")}
    assert all(line["versions"]["torch"] for line in lines.values())


@pytest.mark.system
def test_a_broken_kernel_a_crash_and_a_hang_each_fail_alone(tmp_path):
    code, lines, printed = run(tmp_path, "tests.gpu.broken")
    assert code == 1
    results = {name: line["result"] for name, line in lines.items()}
    assert results == {
        "broken_kernel": "fail", "crash": "fail", "hang": "fail", "needs_two": "skip",
        "needs_a_package": "skip", "finds_out": "skip", "fine": "pass",
    }  # fmt: skip
    assert "float32 is 0.1, not at most 0.0001" in lines["broken_kernel"]["reason"]
    assert lines["crash"]["reason"] == "ended by SIGSEGV"
    assert lines["crash"]["figures"] == {"reached": 1.0}
    assert lines["hang"]["reason"] == "not done after 5 s"
    assert lines["needs_two"]["reason"] == "needs two GPUs, found 0"
    assert lines["finds_out"]["reason"] == "not on a Tuesday"
    assert "1 pass, 3 fail, 3 skip, on no GPU" in printed


def test_a_bundle_brings_pinned_wheels_of_what_the_machine_may_lack_and_none_of_what_it_has():
    wheels = {tier: bundle.wheels("3.12", tier) for tier in bundle.NEEDED}
    assert all("==" in wheel for names in wheels.values() for wheel in names)
    names = {tier: {w.partition("==")[0] for w in names} for tier, names in wheels.items()}
    assert {"transformers", "trl", "pyarrow", "pandas", "pydantic-core", "tokenizers"} <= names["0"]
    assert not names["0"] & {"torch", "hf-xet"}
    assert {"gguf", "trl", "datasets", "math-verify", "pydantic-core"} <= names["pocket"]
    present = {"torch", "transformers", "pyarrow", "numpy", "tokenizers", "sympy"}
    assert not names["pocket"] & present
    assert {"tests/smollm2.py", "tests/gpu/pocket.yaml"} <= {*bundle.tree()}


def test_a_file_is_split_into_parts_that_cat_makes_one_again(tmp_path):
    file, content = tmp_path / "bundle.tar", os.urandom(2_500)
    file.write_bytes(content)
    parts = bundle.split(file, 1_000)
    assert [part.stat().st_size for part in parts] == [1_000, 1_000, 500]
    joined = subprocess.check_output(f"cat {file}*", shell=True)
    assert joined == content
    file.write_bytes(content[:700])
    assert bundle.split(file, 1_000) == [file]
    assert [*tmp_path.iterdir()] == [file]  # no part of an earlier one is left


def test_every_tier_names_its_cases_once():
    for tier in ("tier0", "tier1", "tier2", "tier3", "pocket"):
        names = [case.name for case in check.cases_of(f"tests.gpu.{tier}")]
        assert names
        assert len(set(names)) == len(names)
