"""The peers of bench_judge.py that judge in the Python process itself, each as its authors ship it.

    python tests/bench/judge_peers.py livecodebench < corpus.json

fetches the wheel of lighteval (no dependencies, into a folder outside the repository), judges every
program of the corpus with it, and prints {"passed", "tests", "cpu_s"} as JSON; the CPU time is that
of this process and of all it started. It fails where the wheel cannot be fetched.

    python tests/bench/judge_peers.py math < pairs.json

judges pairs of math answers ({"gold", "answer", "want": ["AC"] or ["WA"]}) with klear, math-verify
and two graders of verl, and prints a row of Markdown for each.
"""

import gc
import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIGHTEVAL, VERL = "lighteval==0.13.0", "verl==0.9.1"
LCB, GRADERS = "lighteval/tasks/tasks/lcb/codegen_metrics.py", "verl/utils/reward_score/"
PEERS = Path(tempfile.gettempdir()) / "klear-bench-peers"
TIMEOUT_S = 6  # LiveCodeBench's default, for each test


def fetched(wheel: str, inside: str) -> Path:
    """The folder with what the wheel has below `inside`; kept between runs."""
    folder = PEERS / wheel
    if not (folder / inside).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
        subprocess.run([*command, wheel], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            archive.extractall(folder, [m for m in archive.namelist() if m.startswith(inside)])
    return folder


def check_correctness() -> Callable[[dict[str, Any]], list[Any]]:
    """The peer's function: a program with its tests → a result for each test."""
    sys.path.insert(0, str((fetched(LIGHTEVAL, LCB) / LCB).parent))
    module = importlib.import_module("codegen_metrics")

    def judge(entry: dict[str, Any]) -> list[Any]:
        names = {"inputs": "inputs", "outputs": "outputs", "fn_name": "fn"}
        tests = {"input_output": json.dumps({key: entry[k] for key, k in names.items()})}
        return module.check_correctness(tests, entry["src"], timeout=TIMEOUT_S)

    return judge


def math_graders() -> dict[str, Callable[[str, str], bool]]:
    """Whether a grader takes an answer for right: gold and answer → yes or no."""
    import math_verify

    from klear.eval.answers import extract_boxed
    from klear.eval.math_answers.verify import quick_verdict
    from klear.eval.math_answers.worker import run

    folder = fetched(VERL, GRADERS)
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):  # without what they import
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
    dapo, reward = (
        importlib.import_module(f"verl.utils.reward_score.{name}")
        for name in ("math_dapo", "math_reward")
    )

    def boxed(answer: str) -> str:
        return answer if "boxed" in answer else rf"\boxed{{{answer}}}"

    def klear(gold: str, answer: str) -> bool:
        extracted = extract_boxed(boxed(answer)).answer or ""
        return (quick_verdict(gold, extracted) or run(gold, extracted)).verdict == "AC"

    def verify(gold: str, answer: str) -> bool:
        theirs, ours = [
            math_verify.parse(text, parsing_timeout=0) for text in (f"${gold}$", boxed(answer))
        ]
        return bool(math_verify.verify(theirs, ours, timeout_seconds=0))

    return {
        "klear": klear,
        "math-verify": verify,
        "verl math_dapo": lambda gold, answer: bool(
            dapo.compute_score(boxed(answer), gold, strict_box_verify=True)["acc"]
        ),
        "verl math_reward": lambda gold, answer: reward.compute_score(boxed(answer), gold) > 0,
    }


def compare_math() -> None:
    pairs = [pair for pair in json.load(sys.stdin) if pair["want"] in (["AC"], ["WA"])]
    print(f"| {len(pairs)} pairs | wrong refusals | wrong acceptances | median, ms |")
    print("|---|---|---|---|")
    for name, grade in math_graders().items():
        refused = accepted = 0
        times = list[float]()
        for pair in pairs:
            started = time.process_time()
            try:
                right = grade(pair["gold"], pair["answer"])
            except Exception:  # a grader that fails gives no reward
                right = False
            times.append(time.process_time() - started)
            refused += not right and pair["want"] == ["AC"]
            accepted += right and pair["want"] == ["WA"]
        print(f"| {name} | {refused} | {accepted} | {1000 * statistics.median(times):.2g} |")


def main(name: str) -> None:
    if name == "math":
        return compare_math()
    corpus = json.load(sys.stdin)
    judge = check_correctness()
    judge(corpus[0])  # imports
    gc.collect()
    before, passed = sum(os.times()[:4]), 0
    for entry in corpus:
        passed += sum(verdict is True for verdict in judge(entry))
    gc.collect()  # ends the managers, whose time counts
    for child in multiprocessing.active_children():
        child.join()
    tests = sum(len(entry["inputs"]) for entry in corpus)
    figures = {"passed": passed, "tests": tests, "cpu_s": sum(os.times()[:4]) - before}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
