"""TIER=pocket: rehearsed without a GPU, killed on the way; and its bundle, in two parts."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from klear.training.launch.result_files import METRICS, read_lines
from tests.flows.test_real_model import row
from tests.gpu import bundle, pocket

ROOT = Path(__file__).parents[2]
TRAIN, TEST = 8, 4


def started(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.gpu.check", "pocket", "--log", folder / "GPU.jsonl"]
    own = {
        "KLEAR_POCKET": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": "",
        "PYTHONSAFEPATH": "",
    }
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True
    )


def lines_by_case(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest of each."""
    log = folder / "GPU.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return {line["case"]: line for line in map(json.loads, lines)}


@pytest.mark.system
def test_a_rehearsal_that_is_killed_between_its_stages_goes_on_and_scores_both_losses(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    for name, numbers in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        with gzip.open(tmp_path / f"gsm8k/{name}.jsonl.gz", "wt") as rows:
            rows.writelines(json.dumps(row(n)) + "\n" for n in numbers)
    first = started(tmp_path)
    while "sft" not in lines_by_case(tmp_path):
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    first.kill()
    first.communicate()
    (sft,) = (tmp_path / "store/sft").glob("*/manifest.json")
    first_result = sft.stat().st_mtime_ns

    again = started(tmp_path)
    printed, _ = again.communicate()
    assert again.returncode == 0, printed
    lines = lines_by_case(tmp_path)
    assert list(lines) == [case.name for case in pocket.CASES]
    assert {line["result"] for line in lines.values()} == {"pass"}
    assert [*(tmp_path / "store/sft").glob("*/manifest.json")] == [sft]
    assert sft.stat().st_mtime_ns == first_result
    assert lines["convert"]["figures"]["weights"].endswith("Q4_1.gguf")
    for loss in pocket.LOSSES:
        assert [line["step"] for line in read_lines(tmp_path / loss / METRICS)] == [1, 2]
        figures = lines[f"rl[{loss}]"]["figures"]
        assert figures["steps"] == 2
        assert {f"{name}, last 1" for name in pocket.CURVES} <= figures.keys()
        assert lines[f"evaluate[{loss}]"]["figures"]["answers"] == TEST


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


def test_the_bundle_of_pocket_brings_no_wheel_that_torch_transformers_or_pyarrow_need():
    names = {name.partition("==")[0] for name in bundle.wheels("3.12", "pocket")}
    assert {"gguf", "trl", "datasets", "math-verify", "pydantic-core"} <= names
    assert not names & {"torch", "transformers", "pyarrow", "numpy", "tokenizers", "sympy"}
    assert {"tests/smollm2.py", "tests/gpu/pocket.yaml"} <= {*bundle.tree()}
