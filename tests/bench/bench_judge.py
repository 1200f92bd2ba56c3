"""CPU time of judging a test in full isolation, beside the runners that others train with.

    python tests/bench/bench_judge.py [--corpus FILE] [--rounds 4] [--started 4]

Rows: trivial programs on every kind of tests, and the mixed corpus of the shared cases. Every side
judges the same right programs on the same tests, one after the other. CPU time is that of a process
and all its descendants. Sides take turns for `--rounds` rounds and the least of each counts.

- python3: a fresh interpreter for every test on stdin, without isolation or comparison: what the
  programs themselves take and 15 ms; one round;
- livecodebench: the published runner in a process of its own (`judge_peers.py`), without isolation,
  and a line instead of a figure when the wheel cannot be fetched;
- firejail: python3 with Klear's arguments without the two that do not work (`--kill-at-exit` is not
  an option, `--timeout` waits 2 s), with its profile `pip` where the package firejail-profiles is
  installed; `--started` programs of the mixed corpus, for it takes long.

The last line is JSON, in milliseconds of CPU per test; `rows` has every kind of tests. `ours` is of
the mixed corpus and includes the start of the sandbox and its self-test, spread over all tests of
the run; `ratio` is firejail's over ours.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from klear.configs.settings.judging import JudgeSettings
from klear.eval.programs.formats import parse_suite
from klear.eval.programs.tested_sandbox import assert_isolated
from klear.eval.programs.verify import judge_program
from klear.eval.records import CallCase, StdinCase, TestSuite
from klear.eval.sandbox.sandbox import Sandbox

Entry = dict[str, Any]
MIXED = "stdin and call: shared cases"
PROFILES = Path("/etc/firejail")
PIP = f"--profile={PROFILES}/pip.profile" if (PROFILES / "pip.profile").exists() else ""
FIREJAIL = (
    f"firejail --private --quiet --seccomp=socket {PIP} --rlimit-nproc=32 "
    "--rlimit-nofile=32 --rlimit-fsize=8m --rlimit-as=1024m -- /usr/bin/python3 -I -S -c"
).split()
FRESH = [sys.executable, "-I", "-c"]
PRELUDE = "from typing import *\nfrom collections import *\nimport math, heapq, bisect\n"


class Job(NamedTuple):
    """A right program with its tests."""

    suite: TestSuite
    program: str
    entry: Entry | None = None
    """What the suite was made from, which peers read; none of assertions."""


def built_in_corpus() -> list[Entry]:
    """Three ways to add two numbers, for a checkout without the shared cases."""
    programs = [
        "a, b = map(int, input().split())\nprint(a + b)\n",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n",
        "class Solution:\n    def add(self, a, b): return a + b\n",
    ]
    corpus: list[Entry] = []
    for k, program in enumerate(programs * 6):
        function, between = ("add", "\n") if program.startswith("class") else (None, " ")
        lines = [f"{i}{between}{i * k}" for i in range(16)]
        sums = [f"{i + i * k}" for i in range(16)]
        corpus.append({"src": program, "fn": function, "inputs": lines, "outputs": sums})
    return corpus


def suite_of(entry: Entry) -> TestSuite:
    """stdin as it is written, or one JSON argument a line for programs with a function."""
    pairs = zip(entry["inputs"], entry["outputs"], strict=True)
    if entry["fn"] is None:
        cases = [{"input": text, "output": expected} for text, expected in pairs]
        return TestSuite.model_validate({"kind": "stdin", "cases": cases})
    cases = [
        {"args": [json.loads(x) for x in text.splitlines()], "output": json.loads(expected)}
        for text, expected in pairs
    ]
    return TestSuite.model_validate({"kind": "call", "fn_name": entry["fn"], "cases": cases})


def seconds() -> float:
    """CPU time so far of this process, of all that live below it and of all that ended."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            one = process.cpu_times()
            total += one.user + one.system + one.children_user + one.children_system
    return total


def scripts(job: Job) -> Iterator[tuple[str, str]]:
    """Each test as a program of its own, with its standard input."""
    name = job.suite.fn_name
    function = f"Solution().{name}" if "class Solution" in job.program else name
    for case in job.suite.cases:
        if isinstance(case, StdinCase):
            yield job.program, case.input
        elif isinstance(case, CallCase):
            yield f"{PRELUDE}{job.program}\nprint({function}(*{case.args!r}))", ""


def settled() -> float:
    """`seconds`, once the processes that were killed are gone, with their time or without."""
    time.sleep(0.2)
    with contextlib.suppress(ChildProcessError):  # orphans come to us, their subreaper
        while True:
            os.waitpid(-1, 0)
    return seconds()


def trivial() -> dict[str, list[Job]]:
    """Programs that add two numbers, on every kind of tests. An assertion that is more than a call
    and its value takes two processes."""
    jobs: dict[str, list[Job]] = {}
    forms = {
        "assert of a call: trivial": "assert add({0}, {1}) == {2}",
        "assert of any code: trivial": "x = add({0}, {1})\nassert abs(x - {2}) < 1e-6",
    }
    for entry in built_in_corpus():
        kind = "call" if entry["fn"] else "stdin"
        jobs.setdefault(f"{kind}: trivial", []).append(Job(suite_of(entry), entry["src"], entry))
        for name, form in forms.items() if entry["fn"] else ():
            sums = zip(entry["inputs"], entry["outputs"], strict=True)
            codes = [form.format(*text.split("\n"), value) for text, value in sums]
            suite = parse_suite(codes, fn_name="add")
            jobs.setdefault(name, []).append(Job(suite, entry["src"]))
    return jobs


def ours(kinds: dict[str, list[Job]]) -> tuple[dict[str, float], float]:
    """CPU milliseconds per test of each kind, without the start; CPU seconds of the start."""
    before, speeds = settled(), dict[str, float]()
    with Sandbox("bubblewrap") as sandbox:
        assert_isolated(sandbox)
        started = seconds()
        for kind, jobs in kinds.items():
            since = seconds()
            for job in jobs:
                verdict = judge_program(sandbox, job.suite, job.program, JudgeSettings())
                assert verdict.verdict == "AC", (verdict, job.program)
            # while they live: a PID namespace that is killed reports nothing
            tests = sum(len(job.suite.cases) for job in jobs)
            speeds[kind] = (seconds() - since) * 1e3 / tests
    return speeds, started - before


def per_test(command: list[str], jobs: list[Job]) -> float:
    """CPU milliseconds per test with a process for every test."""
    before, tests = seconds(), 0
    folder = PROFILES if PIP else Path(tempfile.gettempdir())  # it looks for included profiles
    for script, text in (test for job in jobs for test in scripts(job)):
        with tempfile.TemporaryFile("w+") as file:  # a pipe may be full before it is read
            file.write(text)
            file.seek(0)
            done = subprocess.run([*command, script], stdin=file, capture_output=True, cwd=folder)
        assert not done.returncode, done.stderr
        tests += 1
    return (settled() - before) * 1e3 / tests


def peers(corpus: list[Entry | None]) -> Iterator[tuple[str, float]]:
    """CPU milliseconds per test of LiveCodeBench's runner in one process, if it can be had."""
    command = [sys.executable, str(Path(__file__).with_name("judge_peers.py")), "livecodebench"]
    done = subprocess.run(command, input=json.dumps(corpus), capture_output=True, text=True)
    if done.returncode:
        print(f"not measured: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return
    speeds = json.loads(done.stdout.splitlines()[-1])
    print(f"passes {speeds['passed']} of {speeds['tests']}", file=sys.stderr)
    if speeds["passed"] == speeds["tests"]:  # else it ended a program at its first failure
        yield "livecodebench", speeds["cpu_s"] * 1e3 / speeds["tests"]


def main() -> None:
    shared = Path(__file__).parents[3] / "shared/cases/code_corpus.json"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=shared)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--started", type=int, default=4, help="programs that firejail runs")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    file: Path = options.corpus
    corpus = json.loads(file.read_text()) if file.exists() else built_in_corpus()
    kinds = trivial() | {MIXED: [Job(suite_of(e), e["src"], e) for e in corpus]}

    few = [job for job in kinds[MIXED] if job.suite.kind == "stdin"][: options.started // 2]
    few += [job for job in kinds[MIXED] if job.suite.kind == "call"][: options.started // 2]
    every: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    starts: list[float] = []
    for number in range(options.rounds):
        per, start_s = ours(kinds)
        starts.append(start_s)
        for kind, jobs in kinds.items():
            others = list(peers(entries)) if all(entries := [job.entry for job in jobs]) else []
            if kind == MIXED and shutil.which("firejail"):
                others.append(("firejail", per_test(FIREJAIL, few)))
            if "stdin:" in kind and not number:
                others.append(("python3", per_test(FRESH, jobs)))
            for name, value in [("klear", per[kind]), *others]:
                every[kind].setdefault(name, []).append(value)
                print(f"round {number + 1}: {kind}: {name}: {value:.2f} ms", file=sys.stderr)
    speeds = {
        kind: {name: round(min(values), 2) for name, values in sides.items()}
        for kind, sides in every.items()
    }
    tests = {kind: sum(len(job.suite.cases) for job in jobs) for kind, jobs in kinds.items()}
    peer = dict(speeds[MIXED])
    cost = peer.pop("klear") + min(starts) * 1e3 / (options.rounds * tests[MIXED])

    profile = "the profile pip" if PIP else "its default profile"
    result = {
        "bench": "judge",
        "ours": round(cost, 3),
        "peer": peer,
        "rows": speeds,
        "unit": "ms CPU per test",
        "ratio": round(peer["firejail"] / cost, 2) if "firejail" in peer else None,
        "setup": f"{len(corpus)} programs x 16 tests, full isolation, one core; of "
        f"{options.rounds} rounds the least of each side; firejail with {profile}",
        "start_cpu_s": round(min(starts), 3),
        "step_cpu_s": round(cost * 128 * 8 * 16 / 1e3, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
