"""SIGKILL of anything below the judge, at any moment: work is redone or unscored, nothing stays."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import psutil
import pytest
from pebble import ProcessPool
from processes import at_least, below, called, commanded, killing, left

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.judge import Judge
from klear.eval.programs import tested_sandbox as code_task
from klear.eval.records import Problem, TestSuite
from klear.eval.sandbox import SandboxUnavailable

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
SUMS = [{"input": f"{i} 1\n", "output": f"{i + 1}\n"} for i in range(4)]
TESTS = {"kind": "stdin", "cases": SUMS, "time_limit_s": 20}
ADD = Problem.model_validate({"domain": "code", "prompt": "Add two numbers.", "tests": TESTS})
RIGHT = "print(sum(map(int, input().split())))"
SLOW = f"import time; time.sleep(0.25)\n{RIGHT}"


def answer(program: str, index: int = 0) -> tuple[Problem, str, int]:
    return ADD, f"<think></think>\n```python\n{program}\n# {index}\n```", index


def fork_server() -> psutil.Process:
    return commanded("multiprocessing.forkserver", psutil.Process().children())[0]


def workers() -> list[psutil.Process]:
    """Of every judge of this process, those of the oldest first."""
    return fork_server().children()


def worker_with_sandbox(new: list[psutil.Process]) -> psutil.Process:
    return next(worker for worker in new if below(worker.pid))


PARTS: dict[str, Callable[[list[psutil.Process]], psutil.Process]] = {
    "fork server": lambda _: fork_server(),
    "worker": worker_with_sandbox,
    "sandbox": lambda new: worker_with_sandbox(new).children()[0],
    "interpreter": lambda new: called("python", below(worker_with_sandbox(new).children()[0].pid))[
        0
    ],
}


def kill(victim: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()


@pytest.fixture(autouse=True, scope="module")
def a_fork_server() -> None:
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()


@pytest.mark.parametrize(
    ("ending", "after_s"), [("bubblewrap", 0.1), ("bubblewrap", 0.4), ("none", 0.4)]
)
def test_a_judge_that_ends_leaves_no_file_whatever_was_running(
    ending, after_s, tmp_path, monkeypatch
):
    """`after_s`: how long after its start, while a program runs on many tests."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    many = {"kind": "stdin", "cases": SUMS * 100}
    problem = Problem.model_validate({"domain": "code", "prompt": "Add.", "tests": many})
    with Judge(SETTINGS.model_copy(update={"sandbox": ending})) as judge:
        judge.submit(problem, answer(f"open('x', 'w').write('x')\n{RIGHT}")[1], 0)
        time.sleep(after_s)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_written_to_while_it_is_removed_is_removed_again(tmp_path, monkeypatch):
    cleanup, late = TemporaryDirectory.cleanup, ["a", "b"]

    def refilled(folder: TemporaryDirectory[str]) -> None:
        cleanup(folder)
        if late:
            Path(folder.name, late.pop()).mkdir(parents=True)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(TemporaryDirectory, "cleanup", refilled)
    with Judge(SETTINGS) as judge:
        assert judge.judge(*answer(RIGHT)).correct
    assert list(tmp_path.iterdir()) == []
    assert not late


@pytest.mark.parametrize("part", PARTS)
def test_work_that_a_kill_interrupts_is_done_again(part):
    """And a worker that was killed while nothing was under way is replaced."""
    before = set(below())
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        kill(next(worker for worker in workers() if worker not in before))
        judge.check_sandbox()
        wait = judge.submit(*answer(SLOW))
        time.sleep(0.4)  # in the second of four tests
        victim = PARTS[part]([w for w in workers() if w not in before])
        ended = [victim, *below(victim.pid)]
        victim.kill()
        score = wait()
        assert (score.verdict, score.reward) == ("AC", 1), score.reason
        assert left(ended) == []
        judge.check_sandbox()  # a busy machine may meet the old sandbox at its very end
        started = [w for w in workers() if w not in before]
        started += [p for w in started for p in below(w.pid)]
        assert len(started) > 2
    assert left(started) == []


def test_work_that_a_breaking_pool_took_and_forgot_is_done_again(monkeypatch):
    schedule = ProcessPool.schedule

    def forget(pool: ProcessPool, *_: object, **__: object) -> "Future[None]":
        monkeypatch.setattr(ProcessPool, "schedule", schedule)
        pool.stop()
        return Future()

    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        monkeypatch.setattr(ProcessPool, "schedule", forget)
        assert judge.judge(*answer(RIGHT)).verdict == "AC"


def test_work_that_is_killed_every_time_is_unscored():
    before = set(below())
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        wait = judge.submit(*answer(SLOW))
        with killing(lambda: [w for w in workers() if w not in before]):
            score = wait()
        assert (score.verdict, score.reward, score.correct) == ("IE", None, None)
        assert judge.judge(*answer(RIGHT)).verdict == "AC"


def test_kills_at_random_moments_lose_nothing():
    """Six kills spoil six answers at most, however long a busy machine takes for them all."""
    chance, kills = random.Random(0), 6
    before = set(below())
    seen: set[psutil.Process] = set()

    def any_one() -> list[psutil.Process]:
        nonlocal kills
        started = set(below(fork_server().pid)) - before
        seen.update(started)
        victims = chance.sample(sorted(started, key=lambda p: p.pid), min(1, len(started), kills))
        kills -= len(victims)
        return victims

    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=2))) as judge:
        judge.check_sandbox()
        with killing(any_one, lambda: chance.uniform(0.5, 1.5)):
            scores = list(judge.judge_many(answer(RIGHT if i % 3 else SLOW, i) for i in range(24)))
        seen.update(set(below(fork_server().pid)) - before)
    assert [score.index for score in scores] == list(range(24))
    # MLE: the victim was the program itself, which looks like the kernel's out-of-memory kill.
    assert {score.verdict for score in scores} <= {"AC", "IE", "MLE"}
    assert sum(score.verdict == "AC" for score in scores) >= 24 - 6
    assert kills < 6
    assert left(seen) == []


CALLER = """
import sys, threading
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
tests = {"kind": "stdin", "cases": [{"input": "", "output": ""}], "time_limit_s": 100}
loop = Problem(domain="code", prompt="loop", tests=tests)
root = Problem(domain="math", prompt="root", answer="2x")
judge = Judge(JudgeSettings(runtime=JudgeRuntime(workers=2)))
judge.check_sandbox()
print(judge.judge(root, r"\\boxed{x+x}").verdict, flush=True)
judge.judge(loop, "```python\\nwhile True: pass\\n```")
"""


def test_a_killed_caller_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == b"AC\n"
        # The fork server, two workers of each kind, a sandbox and its interpreter, the loop.
        ending = at_least(8, lambda: below(caller.pid))
        caller.kill()
        assert left(ending) == []


CORES = os.sched_getaffinity(0)


def cores_of(new: list[psutil.Process]) -> list[set[int]]:
    trees = [[worker, *below(worker.pid)] for worker in new]
    return sorted((set().union(*(p.cpu_affinity() for p in tree)) for tree in trees), key=min)


def keeps_to_one(worker: psutil.Process, before: set[psutil.Process]) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return worker not in before and len(worker.cpu_affinity()) == 1
    return False


def test_where_there_is_a_worker_for_every_core_each_keeps_to_its_own():
    before = set(below())
    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=len(CORES)))) as judge:
        for attempt in range(2):  # the second after a kill
            items = (answer(RIGHT, len(CORES) * 10 * attempt + i) for i in range(20))
            assert {score.verdict for score in judge.judge_many(items)} == {"AC"}
            new = at_least(len(CORES), lambda: [w for w in workers() if keeps_to_one(w, before)])
            assert cores_of(new) == [{core} for core in sorted(CORES)]
            kill(new[0])


OWNER = """
import sys
from klear.eval.sandbox.sandbox import Sandbox
from klear.eval.sandbox.zygote.main import Limits
limits = Limits(cpu_s=60, wall_s=60, memory=1 << 30, output=1 << 20)
sandbox = Sandbox(sys.argv[1])
sandbox.start()
sandbox.compile(b"import time; time.sleep(60)", limits)
print("ready", flush=True)
sandbox.run(b"", limits)
"""


@pytest.mark.parametrize("part", ["owner", "interpreter"])
@pytest.mark.parametrize("backend", ["bubblewrap", "none"])
def test_a_sleeping_program_ends_with_what_watches_it(backend, part):
    with subprocess.Popen([sys.executable, "-c", OWNER, backend], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stdout.readline()
        inner = at_least(2, lambda: called("python", below(owner.pid)))
        assert len(inner) == 2  # the interpreter and the test
        watched = below(owner.pid)
        kill(inner[0] if part == "interpreter" else psutil.Process(owner.pid))
        assert left(watched) == []
        owner.kill()


def test_every_new_sandbox_is_tested_before_it_judges(monkeypatch):
    tested, assert_isolated = [], code_task.assert_isolated

    def testing(sandbox):
        tested.append(sandbox)
        assert_isolated(sandbox)

    def verdict() -> str:
        judged = code_task.run(TestSuite.model_validate(TESTS), RIGHT, SETTINGS)
        assert judged is not None
        return judged.verdict

    monkeypatch.setattr(code_task, "assert_isolated", testing)
    before = set(below())  # other tests of this process keep a sandbox too
    try:
        assert (verdict(), verdict()) == ("AC", "AC")
        (first,) = tested
        for process in called("bwrap", set(below()) - before):
            kill(process)
        assert verdict() == "AC"
        assert tested == [first, code_task._sandbox]
        monkeypatch.setattr(code_task, "assert_isolated", mock.Mock(side_effect=SandboxUnavailable))
        code_task.discard()
        with pytest.raises(SandboxUnavailable):
            verdict()
        assert code_task._sandbox is None
    finally:
        code_task.discard()
