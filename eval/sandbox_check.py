"""`klear sandbox check`: which ways to isolate programs work on this machine, and at what cost.

Each is started and put through the self-test of every worker: a program that tries to do harm must
fail, and a known right, wrong and slow program must be judged so.
"""

import time
from typing import get_args

from configs.judging import JudgeSettings
from eval.records import StdinCase, TestSuite
from eval.sandbox import Sandbox
from eval.sandbox_errors import SandboxDied, SandboxUnavailable
from eval.sandbox_selftest import assert_isolated
from eval.verify_code import judge_program
from eval.zygote_isolation import landlock_version

BACKENDS = tuple(
    name for name in get_args(JudgeSettings.model_fields["sandbox"].annotation) if name != "none"
)
_TESTS = 64
_PROGRAM = "print(sum(map(int, input().split())))"


def check_sandboxes(chosen: str) -> tuple[str, int]:
    """A line for each backend, and 0 if `chosen` isolates here, else 1."""
    found = {name: _check(name) for name in BACKENDS}
    lines = [f"{name:<13} {'ok  ' if ok else 'FAIL'}  {text}" for name, (ok, text) in found.items()]
    version = landlock_version()
    lines.append(f"{'Landlock':<13} {f'version {version}' if version else 'not in this kernel'}")
    if chosen == "none":
        lines.append("judge.sandbox=none: programs run unprotected, and every score says so")
        return "\n".join(lines), 0
    works = found[chosen][0]
    lines.append(f"judge.sandbox={chosen}: {'programs are isolated' if works else 'refused'}")
    return "\n".join(lines), 0 if works else 1


def _check(backend: str) -> tuple[bool, str]:
    started = time.monotonic()
    sandbox = Sandbox(backend)
    try:
        sandbox.start()
        assert_isolated(sandbox)
        seconds = time.monotonic() - started
        cost = _milliseconds_per_test(sandbox)
    except (SandboxUnavailable, SandboxDied) as error:
        return False, " ".join(str(error).split())
    finally:
        sandbox.close()
    return True, f"self-test passed in {seconds:.1f} s, {cost:.1f} ms a test"


def _milliseconds_per_test(sandbox: Sandbox) -> float:
    """Wall time, on this machine as busy as it is."""
    cases = tuple(StdinCase(input=f"{i} 1\n", output=f"{i + 1}\n") for i in range(_TESTS))
    suite = TestSuite(kind="stdin", cases=cases)
    started = time.monotonic()
    found = judge_program(sandbox, suite, "check", _PROGRAM, JudgeSettings())
    if found.verdict != "AC":
        raise SandboxUnavailable(f"a right program was judged {found.verdict}: {found.reason}")
    return (time.monotonic() - started) * 1e3 / _TESTS
