"""Does the judge agree with real code? Known solutions pass their tests, wrong ones do not.

    python tests/bench/corpus_code.py [--corpus NAME ...] [--every N] [--rows FILE]

Corpora below ../shared/data: LeetCodeDataset (reference solutions), HumanEval, MBPP and MBPP+
(canonical solutions), Kodsport (submissions that an olympiad's own judge accepted, rejected or paid
in part; some of the last fail only on tests that are too large to be published). In the first five
a function that returns None is the wrong program. `--every N` takes each Nth problem. Prints one
JSON line; the exceptions, each with its verdict, go to stderr or to FILE as JSON lines.
"""

import argparse
import ast
import collections
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from configs.settings.judging import JudgeSettings
from eval.programs.formats import parse_suite
from eval.programs.verify import TestsBroken, judge_program
from eval.records import TestSuite
from eval.sandbox.errors import SandboxDied
from eval.sandbox.sandbox import Outcome, Sandbox
from eval.sandbox.zygote.isolation import Limits

DATA = Path(__file__).resolve().parents[3] / "shared/data"
CORPUS = Literal["leetcode_v0.2.0", "leetcode_v0.3.1", "humaneval", "mbpp", "mbpp_plus", "kodsport"]
ACCEPTED_S, SLOWER = 20.0, 2.0
WRONG = "def wrong(*args, **kwargs): return None\n{name} = wrong\n"

EXPECTED_PROGRAM = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
row, names, results = json.load(sys.stdin), {}, []
exec(row["canonical_solution"], names)
for arguments in row["inputs"]:
    try:
        text = json.dumps(names[row["entry_point"]](*arguments))
        results.append([json.loads(text)] if len(text) < 1 << 20 else [])
    except Exception:
        results.append([])
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Entry:
    """One program with its tests and the verdict of those who published it."""

    corpus: str
    name: str
    suite: TestSuite | None
    program: str
    right: bool
    note: str = ""
    """Why there is no suite, or what a reader of an exception should know."""


@dataclass(frozen=True)
class Finding:
    """An entry on which the judge and the publisher differ, or which could not be judged."""

    corpus: str
    name: str
    right: bool
    verdict: str
    passed: int
    total: int
    reason: str


class TimedSandbox(Sandbox):
    """Remembers the slowest program run, in CPU seconds."""

    slowest = 0.0

    def run(self, stdin: bytes, limits: Limits) -> Outcome:
        outcome = super().run(stdin, limits)
        self.slowest = max(self.slowest, outcome.cpu_s)
        return outcome


def rows(file: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / file, "rt") as lines:
        yield from map(json.loads, lines)


def entries(corpus: str, every: int) -> Iterator[Entry]:
    """The entries of all corpora but Kodsport, whose time limits depend on other entries."""
    files = {
        "leetcode_v0.2.0": "leetcode/v0.2.0_train.jsonl.gz",
        "leetcode_v0.3.1": "leetcode/v0.3.1_test.jsonl.gz",
        "humaneval": "humaneval/test.jsonl.gz",
        "mbpp": "mbpp/mbpp.jsonl.gz",
    }
    if corpus == "mbpp_plus":
        yield from mbpp_plus(every)
        return
    for i, row in enumerate(rows(files[corpus])):
        if i % every:
            continue
        name, note, suite = str(row["task_id"]), "", None
        tests, function, program = row.get("test"), row.get("entry_point", ""), row.get("code")
        if corpus == "mbpp":
            setup = row["test_setup_code"]
            tests = [f"{setup}\n{code}" if setup else code for code in row["test_list"]]
            calls = re.findall(r"(\w+)\s*\(", row["test_list"][0])
            function = next((c for c in calls if f"def {c}" in row["code"]), calls[0])
        elif corpus == "humaneval":
            program = row["prompt"] + row["canonical_solution"]
            tests = functions_beside(function, row["prompt"]) + row["test"]
        else:
            program = row["completion"]
        try:
            suite = parse_suite(
                tests, fn_name="" if corpus == "mbpp" else function.rpartition(".")[2]
            )
            suite = suite.model_copy(update={"time_limit_s": 20.0})
        except ValueError as error:
            note = str(error)
        yield Entry(corpus, name, suite, str(program), True, note)
        yield Entry(corpus, name, suite, WRONG.format(name=function.rpartition(".")[2]), False)


def functions_beside(function: str, prompt: str) -> str:
    """What HumanEval's prompt defines beside the function to write; four tests use it."""
    module = ast.parse(prompt)
    module.body = [
        n for n in module.body if not isinstance(n, ast.FunctionDef) or n.name != function
    ]
    return ast.unparse(module) + "\n"


def mbpp_plus(every: int) -> Iterator[Entry]:
    """The expected values come from a plain interpreter, not from the judge; below 1 MiB each."""
    for row in list(rows("mbpp_plus/MbppPlus.jsonl.gz"))[::every]:
        inputs = row["base_input"] + list(row["plus_input"])  # {} where there are none
        command = [sys.executable, "-s", "-P", "-c", EXPECTED_PROGRAM]
        text = json.dumps({**row, "inputs": inputs})
        try:
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=60,
                env={"PYTHONHASHSEED": "0"},  # some results are lists made of sets
            )
        except subprocess.TimeoutExpired:
            yield Entry("mbpp_plus", str(row["task_id"]), None, "", True, "slow in any interpreter")
            continue
        pairs = zip(inputs, json.loads(done.stdout), strict=True)
        calls = [{"args": given, "output": out[0]} for given, out in pairs if out]
        function, name = row["entry_point"], str(row["task_id"])
        if not calls:
            yield Entry("mbpp_plus", name, None, "", True, "its results are not JSON")
            continue
        suite = parse_suite({"kind": "call", "fn_name": function, "cases": calls})
        yield Entry("mbpp_plus", name, suite, row["canonical_solution"], True)
        if any(call["output"] is not None for call in calls):
            yield Entry("mbpp_plus", name, suite, WRONG.format(name=function), False)


class Run:
    """Judges entries one after the other in one sandbox and keeps the exceptions."""

    def __init__(self) -> None:
        self.sandbox = TimedSandbox("bubblewrap")
        self.sandbox.start()
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[Finding] = []

    def judge(self, entry: Entry, settings: JudgeSettings) -> bool:
        """Whether the program passes all its tests; a difference becomes a finding."""
        side = "right" if entry.right else "wrong"
        if entry.suite is None:
            self.counts[f"{side} not judged"] += 1
            if entry.note:
                self._add(entry, "no tests", 0, 0, entry.note)
            return False
        try:
            found = judge_program(self.sandbox, entry.suite, entry.program, settings)
        except (SandboxDied, TestsBroken) as error:
            self._add(entry, "IE", 0, len(entry.suite.cases), str(error))
            self.sandbox.close()
            self.sandbox.start()
            return False
        passes = found.verdict == "AC"
        self.counts[f"{side} {'passes' if passes else 'fails'}"] += 1
        self.counts["tests"] += found.total
        if passes != entry.right:
            why = f"{found.reason} ({entry.note})" if entry.note else found.reason
            self._add(entry, found.verdict, found.passed, found.total, why)
        return passes

    def _add(self, entry: Entry, verdict: str, passed: int, total: int, reason: str) -> None:
        self.findings.append(
            Finding(entry.corpus, entry.name, entry.right, verdict, passed, total, reason)
        )

    def kodsport(self, every: int, only: str = "") -> None:
        """Accepted submissions first: the others get twice the time of the slowest of them."""
        everything = [r for r in rows("kodsport/problems.jsonl.gz") if r["id"].endswith(only)]
        for row in everything[::every]:
            cases = [{"input": t["input"], "output": t["output"]} for t in row["tests"]]
            note = "" if row["kind"] == "diff" else f"{row['kind']}: its program is not published"
            large = f"{row['skipped_big_tests']} large tests are not published"
            python = [s for s in row["submissions"] if s["file"].endswith(".py")]
            known = ("accepted", "partially_accepted", "wrong_answer", "runtime_error")
            python = [s for s in python if s["verdict"] in known]
            python.sort(key=lambda s: s["verdict"] != "accepted")
            self.sandbox.slowest = limit = 0.0
            for submission in python:
                right = submission["verdict"] == "accepted"
                if not right and not limit:
                    limit = max(1.0, SLOWER * self.sandbox.slowest or ACCEPTED_S)
                fields = {
                    "kind": "stdin",
                    "cases": cases,
                    "time_limit_s": ACCEPTED_S if right else limit,
                }
                suite = None if note else TestSuite.model_validate(fields)
                name = f"{row['id']}/{submission['verdict']}/{submission['file']}"
                entry = Entry("kodsport", name, suite, submission["code"], right, note or large)
                self.judge(entry, JudgeSettings(stop_at_first_failure=not right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", action="append", choices=get_args(CORPUS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    started, results = time.monotonic(), {}
    listed = options.rows.open("w") if options.rows else sys.stderr
    for corpus in options.corpus or get_args(CORPUS):
        run = Run()
        if corpus == "kodsport":
            run.kodsport(options.every)
        else:
            quick = JudgeSettings(stop_at_first_failure=True)
            for entry in entries(corpus, options.every):
                run.judge(entry, JudgeSettings() if entry.right else quick)
        run.sandbox.close()
        results[corpus] = dict(sorted(run.counts.items()))
        for finding in run.findings:
            print(json.dumps(asdict(finding)), file=listed, flush=True)
        print(f"{corpus}: {results[corpus]}", file=sys.stderr, flush=True)
    print(json.dumps({"corpora": results, "seconds": round(time.monotonic() - started)}))


if __name__ == "__main__":
    main()
