"""The peers of bench_judge.py that judge in the Python process itself, each as its authors ship it.

    python tests/bench/judge_peers.py NAME < corpus.json

fetches the peer's wheel (no dependencies, into a folder outside the repository), judges every
program of the corpus with it, and prints {"passed", "tests", "cpu_s"} as JSON; the CPU time is that
of this process and of all it started. It fails where the wheel cannot be fetched.

- livecodebench: `check_correctness` of LiveCodeBench's runner, in the wheel of lighteval;
- prime_code: `check_correctness` of verl's, given all tests of a program at once.
"""

import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
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
        given = {key: value for key, value in sample.items() if value is not None}
        return module.check_correctness(given, program, timeout=TIMEOUT_S, debug=False)[0]

    return judge


def main(name: str) -> None:
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
    found = {"passed": passed, "tests": tests, "cpu_s": sum(os.times()[:4]) - before}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
