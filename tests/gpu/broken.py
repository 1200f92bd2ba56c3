"""Cases that fail in every way there is, one of them by a broken kernel, around one that passes."""

import os
import signal
import time
from unittest import mock

from tests.gpu import tier0
from tests.gpu.check import Case, Report, Skip


def broken_kernel(report: Report) -> None:
    """The fused head's case, with log-probabilities that are a tenth too large."""
    from trl.kernels import chunked_logprob

    right = chunked_logprob.ChunkedLogProbFunction

    class Wrong:
        @staticmethod
        def apply(*words):
            logp, *others = right.apply(*words)
            return 1.1 * logp, *others

    with mock.patch.object(chunked_logprob, "ChunkedLogProbFunction", Wrong):
        tier0.fused_head(report)


def crash(report: Report) -> None:
    report.figure(reached=1.0)
    os.kill(os.getpid(), signal.SIGSEGV)


def finds_out(report: Report) -> None:
    raise Skip("not on a Tuesday")


CASES = [
    Case("broken_kernel", broken_kernel, 60),
    Case("crash", crash, 10),
    Case("hang", lambda _: time.sleep(600), 0.5),
    Case("needs_two", lambda _: None, 10, ("2 GPUs",)),
    Case("needs_a_package", lambda _: None, 10, ("no_such_package",)),
    Case("finds_out", finds_out, 10),
    Case("fine", lambda report: report.figure(answer=42.0), 10, alone=True),
]
