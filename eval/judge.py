"""One judge for filters, reward and benchmarks: an answer's text in, a Score out (§3.2.4).

    with Judge(settings) as judge:
        for score in judge.judge_many((problem, sample.text, sample.index) for ...):
            ...

The answer is what follows the think block: the last boxed expression (math) or the last fenced
program (code). `correct` never depends on the format; the reward does: without exactly one closed
think block it is `unclosed_think` or `code_unclosed_think`. What could not be judged is unscored
(IE), never wrong.
"""

import hashlib
import os
import pickle
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Self

from configs.judging import JudgeSettings
from eval.answers import extract_boxed, extract_program, has_closed_think
from eval.judge_pool import PoolDied, WorkerPool
from eval.records import Problem, Score, Verdict
from eval.sandbox_errors import SandboxUnavailable
from eval.verify_code import CodeVerdict, longest_seconds
from eval.verify_countdown import verify_countdown
from eval.verify_math import MathVerdict, quick_verdict

_LOOK_AHEAD_PER_WORKER = 8

Pending = Callable[[], Score]


class Judge:
    """Judges answers on a pool of workers; a context manager, usable from several threads.

    Nothing is started before it is needed: integers and words need no worker, math needs no
    sandbox. The first code answer (or `check_sandbox`) raises SandboxUnavailable when programs
    cannot be isolated.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings or JudgeSettings()
        workers = self.settings.runtime.workers or os.cpu_count() or 1
        self._math = WorkerPool("math", workers)
        self._code = WorkerPool("code", workers)
        self.look_ahead = _LOOK_AHEAD_PER_WORKER * workers
        self._recent: OrderedDict[bytes, Future[Any]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and sandboxes."""
        self._math.close()
        self._code.close()

    def check_sandbox(self) -> None:
        """Start a sandbox and test its isolation. Raises SandboxUnavailable."""
        self._code.submit(120, pickle.dumps((None, "", "", self.settings))).result()

    def judge(self, problem: Problem, text: str, index: int = 0) -> Score:
        """The Score of one answer."""
        return self.begin(problem, text, index)()

    def judge_many(self, items: Iterable[tuple[Problem, str, int]]) -> Iterator[Score]:
        """The Scores of (problem, text, index) items, in order, in constant memory.

        Identical programs for one problem that are close together are run once.
        """
        pending: deque[Pending] = deque()
        for problem, text, index in items:
            pending.append(self.begin(problem, text, index))
            if len(pending) >= self.look_ahead:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    def begin(self, problem: Problem, text: str, index: int) -> Pending:
        """Extract and hand out the work now; the returned function waits for the Score."""
        started = time.perf_counter()
        find = extract_boxed if problem.domain == "math" else extract_program
        extracted = find(text)
        closed = has_closed_think(text)

        def score(verdict: Verdict, pass_rate: float = 0.0, reason: str = "", s: float = -1):
            seconds = time.perf_counter() - started if s < 0 else s
            return make_score(
                problem,
                index,
                extracted.answer,
                closed,
                verdict,
                pass_rate,
                reason,
                seconds,
                self.settings,
            )

        if extracted.answer is None:
            no_answer = score("WA", reason=extracted.reason)
            return lambda: no_answer
        if problem.domain == "math":
            return self._begin_math(problem, extracted.answer, score)
        return self._begin_code(problem, extracted.answer, score)

    def _begin_math(self, problem: Problem, answer: str, score: Callable[..., Score]) -> Pending:
        gold = problem.answer or ""
        if problem.numbers is not None:
            verdict: MathVerdict | None = verify_countdown(answer, gold, problem.numbers)
        else:
            verdict = quick_verdict(gold, answer)
        if verdict is not None:
            known = score(verdict.verdict, float(verdict.verdict == "AC"), verdict.reason)
            return lambda: known
        limit = self.settings.math_timeout_s
        result = self._submit(self._math, limit, gold, answer)

        def wait() -> Score:
            try:
                found: MathVerdict = result()
            except Exception as error:
                return score("IE", reason=_one_line(error))
            return score(found.verdict, float(found.verdict == "AC"), found.reason, found.seconds)

        return wait

    def _begin_code(self, problem: Problem, program: str, score: Callable[..., Score]) -> Pending:
        assert problem.tests is not None
        limit = longest_seconds(problem.tests, self.settings)
        result = self._submit(self._code, limit, problem.tests, problem.id, program, self.settings)

        def wait() -> Score:
            try:
                found: CodeVerdict = result()
            except SandboxUnavailable:
                raise
            except Exception as error:
                return score("IE", reason=self._marked(_one_line(error)))
            rate = found.passed / found.total
            return score(found.verdict, rate, self._marked(found.reason), found.seconds)

        return wait

    def _marked(self, reason: str) -> str:
        if self.settings.sandbox != "none":
            return reason
        return f"unsandboxed; {reason}" if reason else "unsandboxed"

    def _submit(self, pool: WorkerPool, limit: float, *arguments: Any) -> Callable[[], Any]:
        """Hand out the work, once per window; once more if the pool itself is killed."""
        payload = pickle.dumps(arguments)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        future = self._recent.get(key)
        if future is None:
            future = self._recent[key] = pool.submit(limit, payload)
            while len(self._recent) > self.look_ahead:
                self._recent.popitem(last=False)

        def result() -> Any:
            if isinstance(future.exception(), PoolDied):
                return pool.submit(limit, payload).result()
            return future.result()

        return result


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:500]


def make_score(
    problem: Problem,
    index: int,
    answer: str | None,
    closed_think: bool,
    verdict: Verdict,
    pass_rate: float,
    reason: str,
    seconds: float,
    settings: JudgeSettings,
) -> Score:
    """The reward mapping of §3.2.4: math ±1, code soft or hard, and the think block for both."""
    correct = verdict == "AC"
    reward: float | None
    if verdict == "IE":
        reward = None
    elif problem.domain == "math":
        paid = settings.reward.math_correct if correct else settings.reward.math_wrong
        reward = paid if closed_think else settings.reward.unclosed_think
    else:
        paid = pass_rate if settings.reward.code == "soft" else float(correct)
        reward = paid if closed_think else settings.reward.code_unclosed_think
    return Score(
        problem_id=problem.id,
        index=index,
        reward=reward,
        correct=None if verdict == "IE" else correct,
        pass_rate=None if verdict == "IE" else pass_rate,
        verdict=verdict,
        answer=answer,
        reason=reason,
        seconds=seconds,
    )


def judge(
    problem: Problem, text: str, *, settings: JudgeSettings | None = None, index: int = 0
) -> Score:
    """The Score of one answer, with workers of its own: for one-off use."""
    with Judge(settings) as one:
        return one.judge(problem, text, index)
