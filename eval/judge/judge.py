"""One judge for filters, reward and benchmarks: an answer's text in, a Score out (§3.2.4).

    with Judge(settings) as judge:
        for score in judge.judge_many((problem, sample.text, sample.index) for ...): ...

The answer follows the think block: the last boxed expression (math) or fenced program (code).
`correct` never depends on the format, the reward does. What is not judged is unscored (IE).
"""

import hashlib
import pickle
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...configs.machine import load_machine
from ...configs.settings.judging import JudgeSettings
from ..answers import extract_boxed, extract_program, has_closed_think, writable
from ..families.countdown import verify_countdown
from ..math_answers.verify import letters_of, ordering_of, quick_verdict, with_factors
from ..programs.verify import chosen_suite, longest_seconds
from ..records import NO_GOLD, Judgement, Problem, Score, TestSuite, golds_of
from ..sandbox import MachineUnfit, SandboxDied
from .ends import MACHINE_FAILED
from .workers import NoVerdict, RayPool, WorkerPool

_LOOK_AHEAD_PER_WORKER = 8

FutureScore = Callable[[], Score]  # waits for the Score of an answer that was submitted
Item = tuple[Problem, str, int]  # a problem, the text of an answer, its index


def split_withheld_tests(problem: Problem, tests: TestSuite, count: int) -> tuple[Problem, Problem]:
    """The problem without `count` of its `tests` (by its id, at most half), and with those alone"""
    size = len(tests.cases)
    drawn = random.Random(f"withheld/{problem.id}").sample(range(size), min(count, size // 2))
    cases = [c for i, c in enumerate(tests.cases) if i not in drawn]
    both = (tuple(cases), tuple(tests.cases[i] for i in sorted(drawn)))
    suites = (tests.model_copy(update={"cases": some}) for some in both)
    rewarded, apart = (problem.model_copy(update={"tests": suite}) for suite in suites)
    return rewarded, apart


def best_of(verdicts: Sequence[Judgement | None]) -> Judgement | None:
    """Of an answer beside each gold that would do: one that equals it is enough. None while that is
    open; unscored where it equals none and some gold cannot be read."""
    ranks = {"AC": 0, "": 1, "IE": 2}
    return min(verdicts, key=lambda v: ranks.get(v.verdict if v else "", 3))


class Judge(AbstractContextManager["Judge"]):
    """Judges answers on a pool of workers; a context manager, usable from several threads.

    Nothing starts before it is needed: the first code answer (or `check_sandbox`) raises
    SandboxUnavailable when programs cannot be isolated. A script needs `if __name__ == "__main__"`,
    for workers import it (MachineUnfit says so); a notebook does not.
    """

    def __init__(self, settings: JudgeSettings | None = None, remember: int = 0) -> None:
        """`remember`: results of so many latest programs are kept, with their tests in memory."""
        self.settings = settings or JudgeSettings()
        workers, address = self.settings.runtime.workers, load_machine().ray_address
        self._math, self._code = (
            RayPool(kind, address, workers) if address else WorkerPool(kind, workers)
            for kind in ("math", "code")
        )
        self.look_ahead = _LOOK_AHEAD_PER_WORKER * self._code.workers
        self.remember = max(remember, self.look_ahead)
        self._recent: OrderedDict[bytes, Callable[[], Any]] = OrderedDict()

    def __exit__(self, *_: object) -> None:
        self._math.close()
        self._code.close()

    def check_sandbox(self) -> None:
        """Start a sandbox and test its isolation. Raises SandboxUnavailable."""
        self._code.submit(120, pickle.dumps((None, "", self.settings)))()

    def judge(self, problem: Problem, text: str, index: int = 0) -> Score:
        return self.submit(problem, text, index)()

    def judge_many(self, items: Iterable[Item], draw: int = 0) -> Iterator[Score]:
        """The Scores of (problem, text, index) items, in order, in constant memory. Identical
        programs close together run once. With `max_tests` tests are drawn anew for every `draw`
        (RL: its step)."""
        pending: deque[FutureScore] = deque()
        for problem, text, index in items:
            pending.append(self.submit(problem, text, index, draw))
            if len(pending) >= self.look_ahead:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()

    def submit(self, problem: Problem, text: str, index: int, draw: int = 0) -> FutureScore:
        """Extract and hand out the work now; the returned function waits for the Score."""
        started = time.perf_counter()
        is_math, gold, settings = problem.domain == "math", problem.answer or "", self.settings
        decided, results = list[Judgement | None](), list[Callable[[], Judgement]]()
        extracted = (extract_boxed if is_math else extract_program)(text)
        answer, closed = extracted.answer, has_closed_think(text)
        runs = problem.judgeable and not is_math
        mark = "unsandboxed" if runs and settings.sandbox == "none" else ""

        def score(judgements: Sequence[Judgement | None]) -> Score:
            judgement = best_of(judgements)
            assert judgement is not None
            pay, scored = settings.reward, judgement.verdict != "IE"
            right = judgement.verdict == "AC"
            of_code = pay.of_code(right, judgement.rate, closed)
            reward = pay.of_math(right, closed) if is_math else of_code
            return Score(
                problem_id=writable(problem.id),
                index=index,
                reward=reward if scored else None,
                correct=right if scored else None,
                pass_rate=judgement.rate if scored else None,
                verdict=judgement.verdict,
                answer=None if answer is None else writable(answer),
                reason=writable("; ".join(filter(None, (mark, judgement.reason)))),
                seconds=judgement.seconds or time.perf_counter() - started,
            )

        if not problem.judgeable:
            decided = [Judgement("IE", NO_GOLD)]
        elif answer is None:
            decided = [Judgement("WA", extracted.reason)]
        elif problem.numbers is not None:
            decided = [verify_countdown(answer, gold, problem.numbers)]
        elif is_math:
            ordering, letters = ordering_of(problem.prompt), letters_of(problem.prompt)
            final, limit = with_factors(answer, letters), settings.math_timeout_s
            golds = [with_factors(each, letters) for each in golds_of(gold)]
            decided = [quick_verdict(each, final, ordering) for each in golds]
            if best_of(decided) is None:
                undecided = [g for g, quick in zip(golds, decided, strict=True) if not quick]
                results = [self._submit(self._math, limit, g, final, ordering) for g in undecided]
        else:
            assert problem.tests is not None
            suite = chosen_suite(problem.tests, problem.id, settings.max_tests, draw)
            limit = longest_seconds(suite, settings)
            results = [self._submit(self._code, limit, suite, answer, settings)]
        if results:
            return lambda: score([*filter(None, decided), *map(_outcome, results)])
        at_once = score(decided)
        return lambda: at_once

    def _submit(self, pool: Any, limit: float, *arguments: Any) -> Callable[[], Any]:
        """Hand out the arguments of the task's `run`, once while their result is remembered."""
        payload = pickle.dumps(arguments)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        result = self._recent.get(key)
        if result is None:
            result = self._recent[key] = pool.submit(limit, payload)
            while len(self._recent) > self.remember:
                self._recent.popitem(last=False)
        return result


def _outcome(result: Callable[[], Judgement]) -> Judgement:
    """Of a worker; what went wrong with it leaves the answer unscored. Raises MachineUnfit."""
    try:
        return result()
    except MachineUnfit:
        raise
    except Exception as error:
        of_machine = isinstance(error, (NoVerdict, SandboxDied))
        reason = f"{MACHINE_FAILED * of_machine}{type(error).__name__}: {error}"
        return Judgement("IE", reason.replace("\n", " ")[:500])
