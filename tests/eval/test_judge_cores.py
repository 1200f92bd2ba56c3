"""Where the judge has a worker for every core, each keeps to one of its own."""

import os

import psutil
from processes import below

from configs.judging import JudgeRuntime, JudgeSettings
from eval.judge import Judge
from eval.judge_workers import keep_to_a_core
from eval.records import Problem

TESTS = {"kind": "stdin", "cases": [{"input": "1\n", "output": "1\n"}]}
ECHO = Problem.model_validate({"domain": "code", "prompt": "Say it.", "tests": TESTS})
CORES = os.sched_getaffinity(0)


def judged(judge: Judge, count: int = 20) -> None:
    answers = (f"<think></think>```python\nprint(input())  # {i}\n```" for i in range(count))
    verdicts = [score.verdict for score in judge.judge_many((ECHO, a, 0) for a in answers)]
    assert verdicts == ["AC"] * count


def trees(judge: Judge) -> list[list[psutil.Process]]:
    """Each worker with its sandbox."""
    assert judge._code._process is not None
    workers = psutil.Process(judge._code._process.pid).children()
    return [[worker, *below(worker.pid)] for worker in workers]


def cores_of(judge: Judge) -> list[set[int]]:
    return [set().union(*(p.cpu_affinity() for p in tree)) for tree in trees(judge)]


def test_every_worker_keeps_to_a_core_with_its_sandbox_also_after_a_kill():
    runtime = JudgeRuntime(workers=len(CORES))
    with Judge(JudgeSettings(runtime=runtime)) as judge:
        judged(judge)
        assert sorted(map(min, cores_of(judge))) == sorted(CORES)
        assert {len(cores) for cores in cores_of(judge)} == {1}
        trees(judge)[0][0].kill()
        judged(judge)
        assert sorted(map(min, cores_of(judge))) == sorted(CORES)
        assert {len(cores) for cores in cores_of(judge)} == {1}
    assert os.sched_getaffinity(0) == CORES


def test_fewer_workers_than_cores_leave_the_choice_to_the_scheduler():
    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=1))) as judge:
        judged(judge, 3)
        assert cores_of(judge) == [CORES]


def test_a_worker_more_than_there_are_cores_may_run_anywhere(tmp_path):
    try:
        taken = []
        for _ in CORES:
            taken.append(keep_to_a_core(str(tmp_path)))
            os.sched_setaffinity(0, CORES)
        assert taken == sorted(CORES)
        assert keep_to_a_core(str(tmp_path)) is None
        assert os.sched_getaffinity(0) == CORES
    finally:
        os.sched_setaffinity(0, CORES)
