"""SmolLM2-135M-Instruct through the chain of `pocket`: SFT, killed once, RL, and an evaluation."""

import json
import os
import signal
import subprocess
import sys
import time
from glob import glob
from pathlib import Path

import pytest
import yaml

from klear.eval.records.tables import column
from klear.training.render import CHATML
from tests.smollm2 import smollm2

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
CHAIN = """
import json, sys
from klear.configs.loading import load_profile
from klear.configs.machine import load_machine
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.store.store import Store

with active(Run(store=Store(load_machine().home / "store"))):
    results = compute(load_profile(sys.argv[1]), "evaluate_rl_math")
print(json.dumps({name: [str(result.folder), result.metrics] for name, result in results.items()}))
"""
ROWS, HELD_OUT = 16, 4
THINGS = [("apples", "bags"), ("pencils", "boxes"), ("eggs", "trays"), ("shells", "jars")]


def row(n: int) -> dict[str, str]:
    """A word problem with its worked solution, as GSM8K writes them."""
    things, packs = THINGS[n % 4]
    have, count, each = n + 2, n % 5 + 2, n % 7 + 3
    bought, total = count * each, have + count * each
    question = (
        f"Nora has {have} {things} and buys {count} {packs} with {each} {things} each. How many "
        f"{things} does she have then?"
    )
    work = (
        f"She buys {count} * {each} = <<{count}*{each}={bought}>>{bought} {things}.\n"
        f"Then she has {have} + {bought} = <<{have}+{bought}={total}>>{total} {things}."
    )
    return {"question": question, "answer": f"{work}\n#### {total}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    smollm2(folder / "smollm2")
    for name, numbers in (("train", range(ROWS)), ("test", range(ROWS, ROWS + HELD_OUT))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in numbers))
    return folder


def profile(place: Path) -> Path:
    data = {
        "extends": "pocket",
        "data": {"root": str(place)},
        "collect": {"sources": [
            {"use": "gsm8k_train", "files": ["train.jsonl"], "trace_fields": ["answer"],
             "trace_model": "people"},
        ]},
        "benchmarks": {"sources": [{"use": "gsm8k", "files": ["test.jsonl"]}]},
        "decontaminate": {"min_coverage": 0.9},  # the rows differ by their numbers
        "base": {"model": str(place / "smollm2"), "chat_template": str(place / "opens.jinja")},
        "sft": {"epochs": 2, "batch_tokens": 512, "checkpoint_steps": 2},
        "rl_math": {
            "steps": 2, "prompts_per_step": 4, "mini_batch_prompts": 2, "rollouts_per_prompt": 2,
            "max_tokens": 96, "checkpoint_steps": 1, "warmup_steps": 0,
        },
        "evaluate": {"engine": "vllm", "sampling": {"max_tokens": 96},
                     "protocols": [{"name": "gsm8k", "k": 1}]},
    }  # fmt: skip
    file = place / "cut.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def start(place: Path, file: Path) -> "subprocess.Popen[str]":
    paths = [str(ROOT / ".package"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        "KLEAR_HOME": str(place / "home"),
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",  # a minute, for vLLM's four answers
    }
    return subprocess.Popen(
        [sys.executable, "-c", CHAIN, str(file)], cwd=ROOT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def results(run: "subprocess.Popen[str]") -> dict[str, tuple[Path, dict[str, float]]]:
    """Folder and metrics of each stage, of a run that ends well."""
    output, errors = run.communicate()
    assert run.returncode == 0, errors[-3000:]
    stages = json.loads(output.splitlines()[-1])
    return {name: (Path(folder), metrics) for name, (folder, metrics) in stages.items()}


def curve(folder: Path, name: str = "") -> list[float]:
    """A metric, or the steps at which anything was logged."""
    lines = map(json.loads, (folder / "logs" / "metrics.jsonl").read_text().splitlines())
    points = [(line["step"], line["metrics"]) for line in lines]
    return [metrics[name] if name else step for step, metrics in points if name in (*metrics, "")]


def kill_in_sft(run: "subprocess.Popen[str]", place: Path) -> None:
    stable = f"{place}/home/store/.work/sft/*/.resume/checkpoints/checkpoint-*/STABLE"
    while not glob(stable):  # which passes over folders that go meanwhile; Path.rglob does not
        assert run.poll() is None, run.communicate()[1][-3000:]
        time.sleep(0.2)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def test_a_pretrained_model_is_trained_on_worked_solutions_killed_and_trained_on(place):
    template = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
    (place / "opens.jinja").write_text(template)
    file = profile(place)
    kill_in_sft(start(place, file), place)
    stages = results(start(place, file))
    assert stages["collect"][1]["kept"] == ROWS
    assert stages["filter_rl"][1]["kept"] == stages["decontaminate"][1]["kept"] > ROWS * 2 / 3
    losses, steps = curve(stages["sft"][0], "loss"), curve(stages["sft"][0])
    assert losses[-1] < 0.5 * losses[0]
    assert steps == sorted(set(steps))  # the second run went on
    formatted = curve(stages["rl_math"][0], "reward/format")
    assert len(formatted) == 2
    assert min(formatted) > 0.5
    texts = list(column(stages["evaluate_rl_math"][0] / "samples.parquet", "text"))
    assert len(texts) == HELD_OUT
    assert all(text.startswith("<think>\n") and text.count("<think>") == 1 for text in texts)
