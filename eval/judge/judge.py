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

from configs.machine import load_machine
from configs.settings.judging import JudgeSettings
from eval.answers import after_think, extract_boxed, extract_program, has_closed_think, writable
from eval.judge.workers import WorkerPool
from eval.math_answers.countdown import verify_countdown
from eval.math_answers.verify import quick_verdict
from eval.programs.verify import chosen_suite, longest_seconds
from eval.records import Problem, Score, Verdict
from eval.sandbox.errors import MachineUnfit

_LOOK_AHEAD_PER_WORKER = 8

NO_GOLD = "not judgeable: its source gives no answer and no tests"
"""Why every answer to a prompt without gold is unscored."""

Pending = Callable[[], Score]


class Judge:
    """Judges answers on a pool of workers; a context manager, usable from several threads.

    Nothing is started before it is needed: integers and words need no worker, math needs no
    sandbox. The first code answer (or `check_sandbox`) raises SandboxUnavailable when programs
    cannot be isolated. A script that uses it needs `if __name__ == "__main__"`, as with every
    pool of multiprocessing: workers import the script.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings or JudgeSettings()
        workers = self.settings.runtime.workers
        if address := load_machine().ray_address:
            from eval.judge.ray_pool import RayPool

            self._math, self._code = (RayPool(k, address, workers) for k in ("math", "code"))
        else:
            self._math, self._code = WorkerPool("math", workers), WorkerPool("code", workers)
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
        self._code.submit(120, pickle.dumps((None, "", self.settings))).result()

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
        is_math = problem.domain == "math"
        extracted = (extract_boxed if is_math else extract_program)(text)
        answer, closed, settings = extracted.answer, has_closed_think(text), self.settings
        mark = "unsandboxed" if settings.sandbox == "none" and not is_math else ""

        def score(
            verdict: Verdict, pass_rate: float, reason: str, seconds: float | None = None
        ) -> Score:
            seconds = time.perf_counter() - started if seconds is None else seconds
            return make_score(
                problem, index, answer, closed, verdict, pass_rate, reason, seconds, settings
            )

        def known(verdict: Verdict, reason: str) -> Pending:
            found = score(verdict, float(verdict == "AC"), reason)
            return lambda: found

        gold = problem.answer or ""
        if not problem.judgeable:
            return known("IE", NO_GOLD)
        if is_math and settings.math_rules == "math-verify" and problem.numbers is None:
            # it knows no rule about the numbers to use, and reads the whole answer
            future = self._submit(
                self._math, settings.math_timeout_s, gold, after_think(text) or "", True
            )
        elif answer is None:
            return known("WA", extracted.reason)
        elif problem.numbers is not None:
            verdict = verify_countdown(answer, gold, problem.numbers)
            return known(verdict.verdict, verdict.reason)
        elif is_math and (verdict := quick_verdict(gold, answer)):
            return known(verdict.verdict, verdict.reason)
        elif is_math:
            future = self._submit(self._math, settings.math_timeout_s, gold, answer)
        else:
            assert problem.tests is not None
            suite = chosen_suite(problem.tests, problem.id, settings.max_tests, draw)
            limit = longest_seconds(suite, settings)
            future = self._submit(self._code, limit, suite, answer, settings)

        def wait() -> Score:
            try:
                found = future.result()
            except MachineUnfit:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
                return score("IE", 0.0, "; ".join(filter(None, (mark, reason))))
            rate = float(found.verdict == "AC") if is_math else found.passed / found.total
            reason = "; ".join(filter(None, (mark, found.reason)))
            return score(found.verdict, rate, reason, found.seconds)

        return wait

    def _submit(self, pool: Any, limit: float, *arguments: Any) -> "Future[Any]":
        """Hand out the arguments of the task's `run`, once per window."""
        payload = pickle.dumps(arguments)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        future = self._recent.get(key)
        if future is None:
            future = self._recent[key] = pool.submit(limit, payload)
            while len(self._recent) > self.look_ahead:
                self._recent.popitem(last=False)
        return future


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
    unscored, correct = verdict == "IE", verdict == "AC"
    rewards = settings.reward
    reward = (
        rewards.of_math(correct, closed_think)
        if problem.domain == "math"
        else rewards.of_code(correct, pass_rate, closed_think)
    )
    return Score(
        problem_id=writable(problem.id),
        index=index,
        reward=None if unscored else reward,
        correct=None if unscored else correct,
        pass_rate=None if unscored else pass_rate,
        verdict=verdict,
        answer=None if answer is None else writable(answer),
        reason=writable(reason),
        seconds=seconds,
    )
