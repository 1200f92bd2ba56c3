"""Code judging in a worker: one sandbox per process, tested before its first program."""

import time

from configs.settings.judging import JudgeSettings
from eval.programs.verify import CodeVerdict, judge_program
from eval.records import TestSuite
from eval.sandbox.errors import SandboxDied, SandboxUnavailable
from eval.sandbox.sandbox import Sandbox
from eval.sandbox.selftest import assert_isolated

_STARTS = 3
_sandbox: Sandbox | None = None


def run(suite: TestSuite | None, program: str, settings: JudgeSettings) -> CodeVerdict | None:
    """Judge one program; without a suite, only make sure that there is a sandbox.

    A sandbox that fails is replaced once. Raises SandboxUnavailable, SandboxDied and TestsBroken.
    """
    try:
        return _judged(suite, program, settings)
    except SandboxDied:
        time.sleep(0.1)
        return _judged(suite, program, settings)


def _judged(suite: TestSuite | None, program: str, settings: JudgeSettings) -> CodeVerdict | None:
    global _sandbox
    if _sandbox is None or _sandbox.backend != settings.sandbox:
        _discard()
        _sandbox = _tested(settings.sandbox)
    try:
        return suite and judge_program(_sandbox, suite, program, settings)
    except SandboxDied:
        _discard()
        raise


def _tested(backend: str) -> Sandbox:
    """A new sandbox that has passed its self-test."""
    died = ""
    for _ in range(_STARTS):
        sandbox = Sandbox(backend)
        try:
            sandbox.start()
            assert_isolated(sandbox)
            return sandbox
        except SandboxDied as error:  # something else may have killed it
            sandbox.close()
            died = str(error)
        except BaseException:
            sandbox.close()
            raise
    raise SandboxUnavailable(f"{backend} died {_STARTS} times while it started: {died}")


def _discard() -> None:
    global _sandbox
    if _sandbox is not None:
        _sandbox.close()
    _sandbox = None
