"""Code judging in a worker: one sandbox per process, tested before its first program."""

import time

from configs.judging import JudgeSettings
from eval.records import TestSuite
from eval.sandbox import Sandbox
from eval.sandbox_errors import SandboxDied
from eval.sandbox_selftest import assert_isolated
from eval.verify_code import CodeVerdict, judge_program

_ATTEMPTS = 2
_sandbox: Sandbox | None = None


def run(
    suite: TestSuite | None, problem_id: str, program: str, settings: JudgeSettings
) -> CodeVerdict | None:
    """Judge one program; without a suite, only make sure that there is a sandbox.

    Raises SandboxUnavailable, SandboxDied (twice in a row) and TestsBroken.
    """
    for attempt in range(_ATTEMPTS):
        sandbox = _ready(settings.sandbox)
        try:
            return suite and judge_program(sandbox, suite, problem_id, program, settings)
        except SandboxDied:
            _discard()
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(0.1)
    raise AssertionError


def _ready(backend: str) -> Sandbox:
    global _sandbox
    if _sandbox is None or _sandbox.backend != backend:
        _discard()
        sandbox = Sandbox(backend)
        sandbox.start()
        try:
            assert_isolated(sandbox)
        except BaseException:
            sandbox.close()
            raise
        _sandbox = sandbox
    return _sandbox


def _discard() -> None:
    global _sandbox
    if _sandbox is not None:
        _sandbox.close()
    _sandbox = None
