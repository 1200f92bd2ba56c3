"""The peers of bench_judge.py that judge in the Python process itself, each as its authors ship it.

    python tests/bench/judge_peers.py NAME < corpus.json

fetches the peer's wheel (no dependencies, into a folder outside the repository), judges every
program of the corpus with it, and prints {"passed", "tests", "cpu_s"} as JSON; the CPU time is that
of this process and of all it started. It fails where the wheel cannot be fetched.

    python tests/bench/judge_peers.py math < pairs.json

judges pairs of math answers ({"gold", "answer", "want": ["AC"] or ["WA"]}) with klear, math-verify
and two graders of verl, and prints a row of Markdown for each.

- livecodebench: `check_correctness` of LiveCodeBench's runner, in the wheel of lighteval;
- prime_code: `check_correctness` of verl's, given all tests of a program at once.
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

WHEELS = {"livecodebench": "lighteval==0.13.0", "prime_code": "verl==0.9.1"}
FILES = {
    "livecodebench": "lighteval/tasks/tasks/lcb/codegen_metrics.py",
    "prime_code": "verl/utils/reward_score/prime_code/",
}
PEERS = Path(tempfile.gettempdir()) / "klear-bench-peers"
TIMEOUT_S = 6  # LiveCodeBench's default, for each test


def fetched(name: str) -> Path:
    """The folder with the peer's unpacked files; kept between runs."""
    folder = PEERS / WHEELS[name]
    if not (folder / FILES[name]).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
        subprocess.run([*command, WHEELS[name]], check=True)
        wheels = list(folder.glob("*.whl"))
        with zipfile.ZipFile(wheels[0]) as archive:
            wanted = [member for member in archive.namelist() if member.startswith(FILES[name])]
            archive.extractall(folder, wanted)
    return folder


def check_correctness(name: str) -> Callable[[dict[str, Any]], list[Any]]:
    """The peer's function: a program with its tests → a result for each test."""
    folder, names = fetched(name), {"inputs": "inputs", "outputs": "outputs", "fn_name": "fn"}
    if name == "prime_code":
        sys.path.insert(0, str(folder))
        module = importlib.import_module("verl.utils.reward_score.prime_code.utils")
    else:
        sys.path.insert(0, str((folder / FILES[name]).parent))
        module = importlib.import_module("codegen_metrics")

    def judge(entry: dict[str, Any]) -> list[Any]:
        program, sample = entry["src"], {key: entry[k] for key, k in names.items()}
        if name == "livecodebench":
            tests = {"input_output": json.dumps(sample)}
            return module.check_correctness(tests, program, timeout=TIMEOUT_S)
        fields = {key: value for key, value in sample.items() if value is not None}
        return module.check_correctness(fields, program, timeout=TIMEOUT_S, debug=False)[0]

    return judge


def math_graders() -> dict[str, Callable[[str, str], bool]]:
    """Whether a grader takes an answer for right: gold and answer → yes or no."""
    import math_verify

    from klear.eval.answers import extract_boxed
    from klear.eval.math_answers.verify import quick_verdict
    from klear.eval.math_answers.worker import run

    folder = PEERS / WHEELS["prime_code"]
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    subprocess.run([*command, WHEELS["prime_code"]], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        inside = [m for m in archive.namelist() if m.startswith("verl/utils/reward_score/")]
        archive.extractall(folder, inside)
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
    judge = check_correctness(name)
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
