"""Does the judge agree with real code? Known solutions pass their tests, wrong ones do not.

    python tests/bench/corpus_code.py [--corpus NAME ...] [--every N]

Corpora below ../shared/data: LeetCodeDataset (reference solutions), HumanEval, MBPP and MBPP+
(canonical solutions), Kodsport (submissions that an olympiad's own judge accepted, rejected or paid
in part; some of the last fail only on tests that are too large to be published). In the first five
a function that returns None is the wrong program. `--every N` takes each Nth problem. Prints one
JSON line; the exceptions, each with its verdict, go to stderr as JSON lines.
"""

import argparse
import ast
import collections
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from klear.configs.settings.judging import JudgeSettings
from klear.eval.programs.formats import parse_suite
from klear.eval.programs.verify import TestsBroken, judge_program
from klear.eval.records import TestSuite
from klear.eval.sandbox import SandboxDied
from klear.eval.sandbox.sandbox import ProcessResult, Sandbox
from klear.eval.sandbox.zygote.main import Limits
from klear.tests.bench.real_documents import DATA, rows_of

FILES = {
    "leetcode_v0.2.0": "leetcode/v0.2.0_train.jsonl.gz",
    "leetcode_v0.3.1": "leetcode/v0.3.1_test.jsonl.gz",
    "humaneval": "humaneval/test.jsonl.gz",
    "mbpp": "mbpp/mbpp.jsonl.gz",
    "mbpp_plus": "mbpp_plus/MbppPlus.jsonl.gz",
    "kodsport": "kodsport/problems.jsonl.gz",
}
KNOWN = ("accepted", "partially_accepted", "wrong_answer", "runtime_error")
ACCEPTED_S, SLOWER = 20.0, 2.0
# The expected values of MBPP+ come from a plain interpreter, not from the judge; below 1 MiB each.
EXPECTED_PROGRAM = """
import copy, json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
row, found, names, results, lost = json.load(sys.stdin), sys.argv[1], {}, [], []
exec(row["canonical_solution"], names)
for arguments in row["base_input"] + list(row["plus_input"]):
    try:
        value = names[row["entry_point"]](*copy.deepcopy(arguments))
        text = json.dumps(value is not None if found else value)
        results += [{"args": arguments, "output": json.loads(text)}] if len(text) < 1 << 20 else []
    except Exception as error:
        lost.append(f"{type(error).__name__}: {error}")
print(json.dumps([results, lost]))
"""
# What EvalPlus compares in another way than by equality, by the function's name: as sets, or
# whether something was found at all.
AS_SETS = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly"}
AS_SETS |= {"larg_nnum", "intersection_array", "find_dissimilar", "Diff"}
AS_FOUND = {"check_str", "text_match_three", "text_starta_endb"}
FOUND = "x = {call}\nassert (x if isinstance(x, bool) else x is not None) == {output!r}"


class Entry(NamedTuple):
    """One program with its tests and the verdict of those who published it."""

    name: str
    suite: TestSuite | None
    program: str
    right: bool
    note: str = ""
    """Why there is no suite, or what a reader of an exception should know."""


class TimedSandbox(Sandbox):
    """Remembers the slowest program run, in CPU seconds."""

    slowest = 0.0

    def run(self, stdin: bytes, limits: Limits) -> ProcessResult:
        outcome = super().run(stdin, limits)
        self.slowest = max(self.slowest, outcome.cpu_s)
        return outcome


def rows(corpus: str) -> Iterator[dict[str, Any]]:
    return rows_of(DATA / FILES[corpus])


def entries(corpus: str, every: int) -> Iterator[Entry]:
    """The entries of all corpora but Kodsport, whose time limits depend on other entries."""
    for row in list(rows(corpus))[::every]:
        program, suite, note = "", None, ""
        function = row.get("entry_point", "").rpartition(".")[2]
        try:
            if corpus == "mbpp":
                program, setup = row["code"], row["test_setup_code"]
                calls = re.findall(r"(\w+)\s*\(", row["test_list"][0])
                function = next((c for c in calls if f"def {c}" in program), calls[0])
                suite = parse_suite([f"{setup}\n{test}" for test in row["test_list"]])
            elif corpus == "mbpp_plus":
                program = row["canonical_solution"]
                suite = evalplus_suite(row, function)
            elif corpus == "humaneval":
                program = row["prompt"] + row["canonical_solution"]
                tests = functions_beside(function, row["prompt"]) + row["test"]
                suite = parse_suite(tests, fn_name=function)
            else:
                program, suite = row["completion"], parse_suite(row["test"], fn_name=function)
            suite = suite.model_copy(update={"time_limit_s": 20.0})
        except (ValueError, subprocess.TimeoutExpired) as error:
            late = isinstance(error, subprocess.TimeoutExpired)
            note = "unjudgeable: its reference does not end in time" if late else str(error)
        yield Entry(str(row["task_id"]), suite, program, True, note)
        says_nothing = suite and all(getattr(c, "output", 0) is None for c in suite.cases)
        wrong = f"def wrong(*args, **kwargs): return None\n{function} = wrong\n"
        if suite and not says_nothing:
            yield Entry(str(row["task_id"]), suite, wrong, False)


def functions_beside(function: str, prompt: str) -> str:
    """What HumanEval's prompt defines beside the function to write; four tests use it."""
    module = ast.parse(prompt)
    module.body = [
        n for n in module.body if not isinstance(n, ast.FunctionDef) or n.name != function
    ]
    return ast.unparse(module) + "\n"


def evalplus_suite(row: dict[str, Any], function: str) -> TestSuite:
    """The tests of a row of MBPP+. Raises ValueError where JSON has turned inputs into something
    that the reference itself fails on: tuples into lists, complex numbers into texts."""
    whether = "found" if function in AS_FOUND else ""
    command = [sys.executable, "-s", "-P", "-c", EXPECTED_PROGRAM, whether]
    seed = {"PYTHONHASHSEED": "0"}  # some results are lists made of sets
    done = subprocess.run(
        command, input=json.dumps(row), capture_output=True, text=True, timeout=60, env=seed
    )
    calls, lost = json.loads(done.stdout)
    if lost:
        count = f"{len(lost)} of {len(lost) + len(calls)}"
        raise ValueError(f"unjudgeable: its reference fails on {count} inputs: {lost[0][:100]}")
    form = "assert set({call}) == set({output!r})" if function in AS_SETS else whether and FOUND
    if not form:
        return parse_suite({"kind": "call", "fn_name": function, "cases": calls})
    texts = [f"{function}(*{call['args']!r})" for call in calls]
    pairs = zip(texts, calls, strict=True)
    return parse_suite([form.format(call=text, output=c["output"]) for text, c in pairs])


class Run:
    """Judges entries one after the other in one sandbox and keeps the exceptions."""

    def __init__(self) -> None:
        self.sandbox = TimedSandbox("bubblewrap")
        self.sandbox.start()
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[dict[str, Any]] = []

    def judge(self, entry: Entry, settings: JudgeSettings) -> None:
        """A verdict that is not the publisher's becomes a finding."""
        side = "right" if entry.right else "wrong"
        fields = {"name": entry.name, "right": entry.right, "note": entry.note}
        if entry.suite is None:
            self.counts["unjudgeable" if entry.right else "wrong not judged"] += 1
            self.findings.append({**fields, "verdict": "no tests", "reason": entry.note})
            return
        try:
            verified = judge_program(self.sandbox, entry.suite, entry.program, settings)
        except (SandboxDied, TestsBroken) as error:
            self.findings.append({**fields, "verdict": "IE", "reason": str(error)})
            self.sandbox.close()
            self.sandbox.start()
            return
        passes = verified.verdict == "AC"
        self.counts[f"{side} {'passes' if passes else 'fails'}"] += 1
        self.counts["tests"] += verified.total
        if passes != entry.right:
            self.findings.append({**fields, "verdict": verified.verdict, "reason": verified.reason})

    def kodsport(self, every: int, only: str = "") -> None:
        """Accepted submissions first: the others get twice the time of the slowest of them."""
        for row in [r for r in rows("kodsport") if r["id"].endswith(only)][::every]:
            cases = [{"input": t["input"], "output": t["output"]} for t in row["tests"]]
            unpublished = "" if row["kind"] == "diff" else f"{row['kind']}: no checker is published"
            large = f"{row['skipped_big_tests']} large tests are not published"
            python = [
                s for s in row["submissions"]
                if s["file"].endswith(".py") and s["verdict"] in KNOWN
            ]  # fmt: skip
            self.sandbox.slowest = limit = 0.0
            for s in sorted(python, key=lambda s: s["verdict"] != "accepted"):
                right = s["verdict"] == "accepted"
                limit = limit or max(1.0, SLOWER * self.sandbox.slowest or ACCEPTED_S)
                limit = 0.0 if right else limit
                fields = {"kind": "stdin", "cases": cases, "time_limit_s": limit or ACCEPTED_S}
                suite = None if unpublished else TestSuite.model_validate(fields)
                name = f"{row['id']}/{s['verdict']}/{s['file']}"
                entry = Entry(name, suite, s["code"], right, unpublished or large)
                self.judge(entry, JudgeSettings(stop_at_first_failure=not right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", action="append", choices=FILES)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    started, results = time.monotonic(), {}
    for corpus in options.corpus or FILES:
        run = Run()
        if corpus == "kodsport":
            run.kodsport(options.every)
        else:
            for entry in entries(corpus, options.every):
                run.judge(entry, JudgeSettings(stop_at_first_failure=not entry.right))
        run.sandbox.close()
        results[corpus] = dict(sorted(run.counts.items()))
        for finding in run.findings:
            print(json.dumps({"corpus": corpus, **finding}), file=sys.stderr, flush=True)
    print(json.dumps({"corpora": results, "seconds": round(time.monotonic() - started)}))


if __name__ == "__main__":
    main()
