"""TIER=pocket: rehearsed without a GPU, killed on the way."""

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
from tests.gpu import pocket

ROOT = Path(__file__).parents[2]
TRAIN, TEST = 4, 4


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
