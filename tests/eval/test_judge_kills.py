"""SIGKILL of anything below the judge, at any moment: work is redone or unscored, nothing stays."""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
from processes import at_least, below, called, left

from configs.judging import JudgeRuntime, JudgeSettings
from eval import code_task
from eval.judge import Judge
from eval.records import Problem, TestSuite
from eval.sandbox_errors import SandboxUnavailable

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
SUMS = [{"input": f"{i} 1\n", "output": f"{i + 1}\n"} for i in range(4)]
TESTS = {"kind": "stdin", "cases": SUMS, "time_limit_s": 20}
ADD = Problem.model_validate({"domain": "code", "prompt": "Add two numbers.", "tests": TESTS})
RIGHT = "print(sum(map(int, input().split())))"
SLOW = f"import time; time.sleep(0.25)\n{RIGHT}"


def answer(program: str, index: int = 0) -> tuple[Problem, str, int]:
    return ADD, f"<think></think>\n```python\n{program}\n# {index}\n```", index


def pool_of(judge: Judge) -> psutil.Process:
    assert judge._code._process is not None
    return psutil.Process(judge._code._process.pid)


def worker_of(judge: Judge) -> psutil.Process:
    pool = pool_of(judge).pid
    return next(p for p in below(pool) if parent(p) == pool and below(p.pid))


def sandbox_of(judge: Judge) -> psutil.Process:
    worker = worker_of(judge).pid
    return next(p for p in below(worker) if parent(p) == worker)


def interpreter_of(judge: Judge) -> psutil.Process:
    return called("python", below(sandbox_of(judge).pid))[0]


def parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


PARTS: dict[str, Callable[[Judge], psutil.Process]] = {
    "pool": pool_of,
    "worker": worker_of,
    "sandbox": sandbox_of,
    "interpreter": interpreter_of,
}


def kill(victim: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()


@pytest.mark.parametrize("part", PARTS)
def test_work_that_a_kill_interrupts_is_done_again(part):
    before = set(below())
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        wait = judge.begin(*answer(SLOW))
        time.sleep(0.4)  # in the second of four tests
        victim = PARTS[part](judge)
        ended = [victim, *below(victim.pid)]
        victim.kill()
        score = wait()
        assert (score.verdict, score.reward) == ("AC", 1), score.reason
        assert left(ended) == []
        started = [p for p in below() if p not in before]
    assert left(started) == []


def test_work_that_is_killed_every_time_is_unscored():
    done = threading.Event()
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()

        def keep_killing() -> None:
            while not done.wait(0.1):
                pool = pool_of(judge).pid
                for child in below(pool):
                    if parent(child) == pool:
                        kill(child)

        wait = judge.begin(*answer(SLOW))
        killer = threading.Thread(target=keep_killing)
        killer.start()
        score = wait()
        done.set()
        killer.join()
        assert (score.verdict, score.reward, score.correct) == ("IE", None, None)
        assert judge.judge(*answer(RIGHT)).verdict == "AC"


def test_kills_at_random_moments_lose_nothing():
    chance = random.Random(0)
    before = set(below())
    seen: set[psutil.Process] = set()
    done = threading.Event()
    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=2))) as judge:
        judge.check_sandbox()

        def kill_now_and_then() -> None:
            while not done.wait(chance.uniform(0.5, 1.5)):
                started = set(below()) - before
                seen.update(started)
                if started:
                    kill(chance.choice(sorted(started, key=lambda p: p.pid)))

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        scores = list(judge.judge_many(answer(RIGHT if i % 3 else SLOW, i) for i in range(24)))
        done.set()
        killer.join()
        seen.update(set(below()) - before)
    assert [score.index for score in scores] == list(range(24))
    # MLE: the victim was the program itself, which looks like the kernel's out-of-memory kill.
    assert {score.verdict for score in scores} <= {"AC", "IE", "MLE"}
    assert sum(score.verdict == "AC" for score in scores) >= 18
    assert left(seen) == []


def test_the_next_pool_removes_the_folder_of_a_killed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Judge(SETTINGS) as living, Judge(SETTINGS) as judge:
        living.check_sandbox()
        (held,) = tmp_path.glob("klear-judge-*")
        judge.check_sandbox()
        pool_of(judge).kill()
        (orphan,) = set(tmp_path.glob("klear-judge-*")) - {held}
        assert judge.judge(*answer(RIGHT)).verdict == "AC"
        assert orphan.exists()  # it is not old enough to be nobody's
        pool_of(judge).kill()
        for folder in tmp_path.glob("klear-judge-*"):
            os.utime(folder, (0, 0))
        assert judge.judge(*answer(RIGHT, 1)).verdict == "AC"
        assert not orphan.exists()
        assert held.exists()
    assert held not in tmp_path.iterdir()


OWNER = """
import sys
from eval.sandbox import Sandbox
from eval.zygote_isolation import Limits
limits = Limits(cpu_s=60, wall_s=60, memory=1 << 30, output=1 << 20)
sandbox = Sandbox(sys.argv[1])
sandbox.start()
sandbox.compile(b"import time; time.sleep(60)", limits)
print("ready", flush=True)
sandbox.run(b"", limits)
"""


@pytest.mark.parametrize("part", ["owner", "interpreter"])
@pytest.mark.parametrize("backend", ["bubblewrap", "firejail", "unprivileged", "none"])
def test_a_sleeping_program_ends_with_what_watches_it(backend, part):
    command = [sys.executable, "-c", OWNER, backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stderr
        if not owner.stdout.readline():
            error = owner.stderr.read().decode()
            if backend in ("firejail", "unprivileged") and "SandboxUnavailable" in error:
                pytest.skip(f"{backend} does not work on this machine: {error[-300:]}")
            pytest.fail(error)
        inner = at_least(2, lambda: called("python", below(owner.pid)))
        assert len(inner) == 2  # the interpreter and the test
        watched = below(owner.pid)
        kill(inner[0] if part == "interpreter" else psutil.Process(owner.pid))
        assert left(watched) == []
        owner.kill()


def test_every_new_sandbox_is_tested_before_it_judges(monkeypatch):
    tested = []
    assert_isolated = code_task.assert_isolated
    monkeypatch.setattr(
        code_task, "assert_isolated", lambda s: (tested.append(s), assert_isolated(s))
    )
    suite = TestSuite.model_validate(TESTS)
    try:
        code_task.run(suite, "id", RIGHT, SETTINGS)
        code_task.run(suite, "id", RIGHT, SETTINGS)
        first = code_task._sandbox
        assert tested == [first]
        assert first is not None
        assert first._process is not None
        first._process.kill()
        first._process.wait()
        verdict = code_task.run(suite, "id", RIGHT, SETTINGS)
        assert verdict is not None
        assert verdict.verdict == "AC"
        assert tested == [first, code_task._sandbox]

        def fails(sandbox: object) -> None:
            raise SandboxUnavailable("a canary sang")

        monkeypatch.setattr(code_task, "assert_isolated", fails)
        code_task._discard()
        with pytest.raises(SandboxUnavailable, match="a canary sang"):
            code_task.run(suite, "id", RIGHT, SETTINGS)
        assert code_task._sandbox is None
    finally:
        code_task._discard()
