"""CPU time of judging a test in full isolation, against a sandbox started for every test.

    python tests/bench/bench_judge.py [--programs 20] [--tests 16]

Each side runs the same programs on the same tests. CPU time is that of all descendants (children
that ended or live), because wall time on a shared machine says little. The last line is JSON:
milliseconds of CPU per test, and `ratio` = firejail's over ours.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import psutil

from configs.judging import JudgeSettings
from eval.compare import same_text
from eval.records import StdinCase, TestSuite
from eval.sandbox import Sandbox
from eval.verify_code import judge_program

FIREJAIL = """
firejail --quiet --noprofile --net=none --private --private-dev --caps.drop=all
--rlimit-as=1g --rlimit-nproc=64 --seccomp=socket --
"""
BUBBLEWRAP = """
bwrap --unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/lib /lib
--symlink usr/lib64 /lib64 --dev /dev --tmpfs /tmp --
"""

PROGRAMS = [
    "a, b = map(int, input().split())\nprint(a + b)\n",
    "from math import gcd\na, b = map(int, input().split())\nprint(a + b * gcd(1, 7))\n",
    "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n",
    "from collections import Counter\nprint(sum(Counter(map(int, input().split())).elements()))\n",
]


def own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def ended_seconds() -> float:
    """CPU time of every descendant that has ended; orphans come to us, their subreaper."""
    time.sleep(0.1)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    times = os.times()
    return times.children_user + times.children_system


def measured(work: Callable[[], tuple[int, float]]) -> tuple[float, float]:
    """(CPU, wall) milliseconds per test; `work` returns tests passed and its children's CPU."""
    cpu, wall = own_seconds(), time.monotonic()
    tests, children = work()
    wall = time.monotonic() - wall
    return (own_seconds() - cpu + children) * 1e3 / tests, wall * 1e3 / tests


def ours(programs: list[str], suite: TestSuite) -> tuple[int, float]:
    passed = 0
    with Sandbox("bubblewrap") as sandbox:
        for program in programs:
            verdict = judge_program(sandbox, suite, "bench", program, JudgeSettings())
            assert verdict.verdict == "AC", verdict
            passed += verdict.passed
        # A PID namespace that is killed reports no CPU time, so ask while it lives.
        times = [p.cpu_times() for p in psutil.Process().children(recursive=True)]
        living = [t.user + t.system + t.children_user + t.children_system for t in times]
    return passed, sum(living)


def per_test(
    prefix: list[str], programs: list[str], cases: list[tuple[str, str]]
) -> tuple[int, float]:
    before = ended_seconds()
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            for given, expected in cases:
                command = [*prefix, "/usr/bin/python3", "-I", "-S", "-c", program]
                done = subprocess.run(
                    command, input=given, capture_output=True, text=True, cwd=folder
                )
                assert same_text(done.stdout, expected), done.stderr
    return len(programs) * len(cases), ended_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=16)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    programs = [PROGRAMS[i % len(PROGRAMS)] for i in range(options.programs)]
    cases = [(f"{i} {i * i}\n", f"{i + i * i}\n") for i in range(options.tests)]
    records = tuple(StdinCase(input=given, output=expected) for given, expected in cases)
    suite = TestSuite(kind="stdin", cases=records)
    cpu, wall = measured(lambda: ours(programs, suite))
    print(f"klear: {cpu:.2f} ms CPU, {wall:.2f} ms wall per test", file=sys.stderr)
    peers: dict[str, float] = {}
    few = programs[: max(1, options.programs // 5)]
    for name, prefix in (("firejail", FIREJAIL), ("bwrap", BUBBLEWRAP), ("subprocess", "")):
        if not prefix or shutil.which(prefix.split()[0]):
            peers[name], peer_wall = measured(lambda p=prefix: per_test(p.split(), few, cases))
            print(f"{name}: {peers[name]:.2f} CPU, {peer_wall:.2f} wall", file=sys.stderr)
    result = {
        "bench": "judge",
        "ours": round(cpu, 3),
        "peer": {name: round(value, 3) for name, value in peers.items()},
        "unit": "ms CPU per test",
        "ratio": round(peers["firejail"] / cpu, 2) if "firejail" in peers else None,
        "setup": f"{options.programs} programs x {options.tests} stdin tests, one core, isolated",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
