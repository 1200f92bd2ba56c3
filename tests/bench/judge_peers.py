"""The peers of bench_judge.py that judge in the Python process itself, each as its authors ship it.

    python tests/bench/judge_peers.py NAME < corpus.json

fetches the peer's wheel (no dependencies, into a folder outside the repository), judges every
program of the corpus with it, and prints {"passed", "tests", "cpu_s", "wall_s"} as JSON; the CPU
time is that of this process and of all it started. Exit status 3: the wheel cannot be fetched.

- livecodebench: `check_correctness` of LiveCodeBench's runner, in the wheel of lighteval;
- prime_code: `check_correctness` of verl's, given all tests of a program at once.
"""

import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
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
NOT_FETCHED = 3
TIMEOUT_S = 6  # LiveCodeBench's default, for each test


def fetched(name: str) -> Path:
    """The folder with the peer's unpacked files; kept between runs."""
    folder = PEERS / WHEELS[name]
    if not (folder / FILES[name]).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
        done = subprocess.run([*command, WHEELS[name]], capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            print(done.stderr[-500:], file=sys.stderr)
            sys.exit(NOT_FETCHED)
        with zipfile.ZipFile(wheels[0]) as archive:
            wanted = [member for member in archive.namelist() if member.startswith(FILES[name])]
            archive.extractall(folder, wanted)
    return folder


def firejail_profiles() -> Path | None:
    """The folder with firejail's profile `pip`: installed, or unpacked from its Debian package."""
    folder = PEERS / "firejail-profiles"
    unpacked = folder / "etc/firejail"
    for found in (Path("/etc/firejail"), unpacked):
        if (found / "pip.profile").exists():
            return found
    folder.mkdir(parents=True, exist_ok=True)
    script = "apt-get download -q firejail-profiles && dpkg -x firejail-profiles_*.deb ."
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True)
    return unpacked if done.returncode == 0 else None


def check_correctness(name: str) -> Callable[[dict[str, Any]], list[Any]]:
    """The peer's function: a program with its tests → a result for each test."""
    folder, names = fetched(name), {"inputs": "inputs", "outputs": "outputs", "fn_name": "fn"}
    if name == "prime_code":
        sys.path.insert(0, str(folder))
        module = importlib.import_module("verl.utils.reward_score.prime_code.utils")
    else:
        spec = importlib.util.spec_from_file_location("codegen_metrics", folder / FILES[name])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

    def judge(entry: dict[str, Any]) -> list[Any]:
        program, sample = entry["src"], {key: entry[k] for key, k in names.items()}
        if name == "livecodebench":
            tests = {"input_output": json.dumps(sample)}
            return module.check_correctness(tests, program, timeout=TIMEOUT_S)
        given = {key: value for key, value in sample.items() if value is not None}
        return module.check_correctness(given, program, timeout=TIMEOUT_S, debug=False)[0]

    return judge


def seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(name: str) -> None:
    corpus = json.load(sys.stdin)
    judge = check_correctness(name)
    judge(corpus[0])  # imports
    gc.collect()
    cpu, wall, passed, tests = seconds(), time.monotonic(), 0, 0
    for entry in corpus:
        passed += sum(verdict is True for verdict in judge(entry))
        tests += len(entry["inputs"])
    gc.collect()  # ends the managers, whose time counts
    for child in multiprocessing.active_children():
        child.join()
    found = {"cpu_s": seconds() - cpu, "wall_s": time.monotonic() - wall}
    print(json.dumps({"passed": passed, "tests": tests, **found}))


if __name__ == "__main__":
    main(sys.argv[1])
