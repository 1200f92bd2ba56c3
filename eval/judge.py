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
import pickle
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Self

from configs.judging import JudgeSettings
from eval.answers import after_think, extract_boxed, extract_program, has_closed_think, writable
from eval.judge_pool import Pool, PoolDied, open_pools
from eval.records import Problem, Score, Verdict
from eval.sandbox_errors import MachineUnfit
from eval.verify_code import CodeVerdict, chosen_suite, longest_seconds
from eval.verify_countdown import verify_countdown
from eval.verify_math import MathVerdict, quick_verdict

_LOOK_AHEAD_PER_WORKER = 8

NO_GOLD = "not judgeable: its source gives no answer and no tests"
"""Why every answer to a prompt without gold is unscored."""

Pending = Callable[[], Score]


class Judge:
    """Judges answers on a pool of workers; a context manager, usable from several threads.

    Nothing is started before it is needed: integers and words need no worker, math needs no
    sandbox. The first code answer (or `check_sandbox`) raises SandboxUnavailable when programs
    cannot be isolated.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings or JudgeSettings()
        self._math, self._code = open_pools(self.settings.runtime.workers)
        self.look_ahead = _LOOK_AHEAD_PER_WORKER * self._code.workers
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

    def judge_many(
        self, items: Iterable[tuple[Problem, str, int]], draw: int = 0
    ) -> Iterator[Score]:
        """The Scores of (problem, text, index) items, in order, in constant memory.

        Identical programs for one problem that are close together are run once. With `max_tests`,
        a problem's tests are sampled anew for every `draw`: RL passes its step.
        """
        pending: deque[Pending] = deque()
        for problem, text, index in items:
            pending.append(self.begin(problem, text, index, draw))
            if len(pending) >= self.look_ahead:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    def begin(self, problem: Problem, text: str, index: int, draw: int = 0) -> Pending:
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

        if not problem.judgeable:
            unscored = score("IE", reason=NO_GOLD)
            return lambda: unscored
        by_peer = problem.domain == "math" and self.settings.math_rules == "math-verify"
        if by_peer and problem.numbers is None:  # it knows no rule about the numbers to use
            return self._wait_math(score, problem.answer or "", after_think(text) or "", True)
        if extracted.answer is None:
            no_answer = score("WA", reason=extracted.reason)
            return lambda: no_answer
        if problem.domain == "math":
            return self._begin_math(problem, extracted.answer, score)
        return self._begin_code(problem, extracted.answer, score, draw)

    def _begin_math(self, problem: Problem, answer: str, score: Callable[..., Score]) -> Pending:
        gold = problem.answer or ""
        if problem.numbers is not None:
            verdict: MathVerdict | None = verify_countdown(answer, gold, problem.numbers)
        else:
            verdict = quick_verdict(gold, answer)
        if verdict is not None:
            known = score(verdict.verdict, float(verdict.verdict == "AC"), verdict.reason)
            return lambda: known
        return self._wait_math(score, gold, answer)

    def _wait_math(self, score: Callable[..., Score], *task: Any) -> Pending:
        """Hand `task`, the arguments of `eval.math_task.run`, to a worker."""
        result = self._submit(self._math, self.settings.math_timeout_s, *task)

        def wait() -> Score:
            try:
                found: MathVerdict = result()
            except MachineUnfit:
                raise
            except Exception as error:
                return score("IE", reason=_one_line(error))
            return score(found.verdict, float(found.verdict == "AC"), found.reason, found.seconds)

        return wait

    def _begin_code(
        self, problem: Problem, program: str, score: Callable[..., Score], draw: int
    ) -> Pending:
        assert problem.tests is not None
        limit = longest_seconds(problem.tests, self.settings)
        suite = chosen_suite(problem.tests, problem.id, self.settings.max_tests, draw)
        result = self._submit(self._code, limit, suite, problem.id, program, self.settings)

        def wait() -> Score:
            try:
                found: CodeVerdict = result()
            except MachineUnfit:
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

    def _submit(self, pool: Pool, limit: float, *arguments: Any) -> Callable[[], Any]:
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
    """The reward mapping of §3.2.4: math ±1, code by its tests, and the think block for both."""
    correct = verdict == "AC"
    reward: float | None = None
    if verdict != "IE" and problem.domain == "math":
        reward = settings.reward.of_math(correct, closed_think)
    elif verdict != "IE":
        reward = settings.reward.of_code(correct, pass_rate, closed_think)
    return Score(
        problem_id=writable(problem.id),
        index=index,
        reward=reward,
        correct=None if verdict == "IE" else correct,
        pass_rate=None if verdict == "IE" else pass_rate,
        verdict=verdict,
        answer=None if answer is None else writable(answer),
        reason=writable(reason),
        seconds=seconds,
    )


def judge(
    problem: Problem, text: str, *, settings: JudgeSettings | None = None, index: int = 0
) -> Score:
    """The Score of one answer, with workers of its own: for one-off use."""
    with Judge(settings) as one:
        return one.judge(problem, text, index)
