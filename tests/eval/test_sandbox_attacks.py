"""No program scores without computing the answer, and none leaves anything behind.

The attacks are in `attacks/*.toml`: a sentence on what success would be, a program, and the kinds
of test that it is to fool. A program has succeeded if it is judged
right, if something outside of its process changed, or if the next program is not judged as it
should be.
"""

import os
import socket
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from processes import below, left

from klear.configs.settings.judging import JudgeSettings
from klear.eval.programs.verify import judge_program
from klear.eval.records import Judgement, TestSuite
from klear.eval.sandbox.sandbox import Sandbox

SUMS = ((3, 4), (5, 6))
SETTINGS = JudgeSettings()
SLOWEST_S = 60  # wall: 2 tests of twice the CPU limit and 4 s, on a busy machine
CHECKER = """
import sys
given, output, _ = (open(name).read() for name in sys.argv[1:])
assert sum(map(int, given.split())) == int(output)
print("ok")
"""
FOLDER = Path(__file__).with_name("attacks")
ATTACKS: dict[str, dict[str, Any]] = {
    name: {"kinds": [attack.get("kind", "stdin")]} | attack
    for file in sorted(FOLDER.glob("*.toml"))
    for name, attack in tomllib.loads(file.read_text()).items()
}
TRIED = [(name, kind) for name, attack in ATTACKS.items() for kind in attack["kinds"]]
ASSERTS = {  # the forms that assertions take; `assert` is none that is turned into a call
    "assert": "got = add({a}, {b})\nassert got == {sum}",
    "assert-close": "assert abs(add({a}, {b}) - {sum}) < 1e-6",
    "assert-fabs": "import math\nassert math.fabs(add({a}, {b}) - {sum}.5) < 0.75",
    "assert-difference": "assert add({a}, {b}) - {sum} == 0",
    "assert-reflected": "assert {sum} - 1 < add({a}, {b}) and {sum} >= add({a}, {b})",
    "assert-member": "assert add({a}, {b}) in [{sum}]",
    "assert-items": "got = [add({a}, {b})]\nassert got == [{sum}] or abs(got[0] - {sum}) < 1e-3",
    "assert-mapped": "assert all(map(lambda p: add(*p) == p[0] + p[1], [({a}, {b})]))",
}
TESTS: dict[str, dict[str, Any]] = {
    "stdin": {"cases": [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in SUMS]},
    "call": {"fn_name": "add", "cases": [{"args": [a, b], "output": a + b} for a, b in SUMS]},
}
for kind, form in ASSERTS.items():
    codes = [form.format(a=a, b=b, sum=a + b) for a, b in SUMS]
    TESTS[kind] = {"kind": "assert", "cases": [{"code": code} for code in codes]}
TESTS["checker"] = {"cases": [c | {"checker": CHECKER} for c in TESTS["stdin"]["cases"]]}
RIGHT = {
    "stdin": "print(sum(map(int, input().split())))",
    "call": "class Solution:\n    def add(self, a, b): return a + b",
} | dict.fromkeys(ASSERTS, "def add(a, b): return a + b")
RIGHT["checker"] = RIGHT["stdin"]


class Outside:
    """What a program must not reach: a file, a folder and a socket that everybody may use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for above in (folder, *folder.parents):
            if above.stat().st_uid == os.getuid() and above != Path("/"):
                above.chmod(above.stat().st_mode | 0o777)
        self.file = folder / "file"
        self.file.write_text("untouched")
        self.file.chmod(0o666)
        os.utime(self.file, (1e9, 1e9))
        self.address = f"klear-outside-{os.getpid()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{self.address}")
        self.socket.setblocking(False)
        self.before = self.state()

    def fill_in(self, program: str) -> str:
        values = {"file": self.file, "folder": self.folder, "pid": os.getpid()}
        for name, value in (values | {"address": self.address}).items():
            program = program.replace(f"{{{name}}}", str(value))
        return program

    def state(self) -> list[Any]:
        state: list[Any] = [sorted(os.listdir(self.folder)), self.file.read_text()]
        for path in (self.folder, self.file):
            facts = path.stat()
            state.append((facts.st_mode, facts.st_mtime, facts.st_nlink, facts.st_size))
        try:
            state.append(self.socket.recv(100))
        except BlockingIOError:
            state.append(None)
        return state


@pytest.fixture
def outside(tmp_path):
    victim = Outside(tmp_path)
    yield victim
    victim.socket.close()


def judged(sandbox: Sandbox, kind: str, program: str, count: int = 2) -> Judgement:
    tests = {"kind": kind, "time_limit_s": 0.25, "memory_mb": 512} | TESTS[kind]
    tests["cases"] = tests["cases"][:count]
    suite = TestSuite.model_validate(tests)
    return judge_program(sandbox, suite, program, SETTINGS)


@pytest.mark.parametrize(("name", "kind"), TRIED)
def test_an_attack_gains_nothing_and_leaves_nothing(sandbox, outside, name, kind):
    attack = ATTACKS[name]
    before = set(below())
    started = time.monotonic()
    verified = judged(sandbox, kind, outside.fill_in(attack["program"]), attack.get("tests", 2))
    assert verified.verdict not in ("AC", "IE"), attack["why"]
    assert verified.passed <= attack.get("passes", 0), attack["why"]
    assert time.monotonic() - started < SLOWEST_S
    assert outside.state() == outside.before
    assert judged(sandbox, kind, RIGHT[kind]).verdict == "AC"  # the same sandbox still judges
    assert left(set(below()) - before) == []
