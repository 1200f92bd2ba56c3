"""Parts and the judge on a cluster of two nodes: what they share, and what no death changes."""

import signal
import threading
from pathlib import Path

import psutil
import pytest
import ray
from processes import eventually, killing, left

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval import ray_cluster
from klear.eval.judge import workers
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.eval.sandbox import MachineUnfit
from klear.tasks.engine.parts import computed_parts
from tests.cluster import parts_of_tests as work


def test_a_node_that_does_not_see_the_store_says_what_to_do(blind, place):
    with pytest.raises(MachineUnfit, match="must lie on a file system that they share"):
        list(computed_parts(place / "parts", list(range(20)), work.write_slowly))


def test_what_a_part_raises_is_raised_here_and_finished_parts_stay(cluster, place):
    with pytest.raises(ValueError, match=r"^three is not to be squared$"):
        list(computed_parts(place / "parts", [1, 2, 3, 4], work.refuse_three, workers=2))
    assert {p.name for p in (place / "parts").iterdir()} <= {"00000", "00001", "00003"}
    folders = computed_parts(place / "parts", [1, 2, 3, 4], work.write_square, workers=2)
    assert [int((f / "square").read_text()) for f in folders] == [1, 4, 9, 16]


def test_only_what_has_no_answer_is_cancelled(cluster, place, monkeypatch):
    """Ray aborts a process that cancels a task while the task completes."""
    cancelled = []
    monkeypatch.setattr(ray, "cancel", lambda call, force: cancelled.append(call))
    list(computed_parts(place / "parts", [1, 2, 3], work.write_square, workers=2))
    with Judge(SETTINGS) as judge:
        assert judge.judge(*answer(adding(), RIGHT)).verdict == "AC"
    assert cancelled == []
    with pytest.raises(ValueError, match="three"):
        list(computed_parts(place / "more", [3, 4, 5, 6], work.refuse_three, workers=2))
    assert len(cancelled) == 3


def test_a_part_that_is_lost_every_time_is_an_error_with_advice(cluster, place):
    with pytest.raises(RuntimeError, match=r"part 00000 was lost 4 times .* smaller parts"):
        list(computed_parts(place / "parts", [0, 1], work.die_at_zero, workers=2))


def test_parts_that_hang_are_ended_with_the_stage(cluster, place, tmp_path):
    """Whose process is interrupted by a signal."""

    def interrupt_when_one_hangs() -> None:
        assert eventually(lambda: list(tmp_path.iterdir()))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
    threading.Thread(target=interrupt_when_one_hangs, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        list(computed_parts(place / "parts", [str(tmp_path)] * 3, work.hang))
    signal.signal(signal.SIGUSR2, before)
    began = {file.name for file in tmp_path.iterdir()}
    assert left(p for p in psutil.process_iter() if str(p.pid) in began) == []


SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
RIGHT = "print(sum(map(int, input().split())))"
SLOW = f"import time; time.sleep(1)\n{RIGHT}"


def adding(size: int = 1) -> Problem:
    """Add two numbers, or `size` of them in one of the tests."""
    cases = [
        {"input": "1 2\n", "output": "3\n"},
        {"input": "1 " * size, "output": str(size)},
        *({"input": f"{i} 1\n", "output": f"{i + 1}\n"} for i in range(4)),
    ]
    tests = {"kind": "stdin", "cases": cases, "time_limit_s": 60}
    return Problem.model_validate({"domain": "code", "prompt": f"Add {size}.", "tests": tests})


def answer(problem: Problem, program: str, index: int = 0) -> tuple[Problem, str, int]:
    return problem, f"<think></think>\n```python\n{program}\n# {index}\n```", index


def test_programs_and_a_large_suite_and_math_are_judged_at_once(cluster):
    surd = Problem(domain="math", prompt="The root of 8?", answer=r"2\sqrt{2}")
    problem = adding(200_000)
    with Judge(SETTINGS) as judge:
        waiting = [judge.submit(*answer(problem, (RIGHT, "print(3)")[i % 2], i)) for i in range(8)]
        assert judge.judge(surd, r"<think></think>\boxed{\sqrt{8}}").verdict == "AC"
        assert [wait().verdict for wait in waiting] == ["AC", "WA"] * 4


def test_work_whose_worker_dies_every_time_is_unscored_and_the_next_is_judged(cluster):
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        with killing(lambda: cluster.processes("ray::judge_on_node")):
            score = judge.judge(*answer(adding(), SLOW))
        assert (score.verdict, score.reward, score.correct) == ("IE", None, None)
        assert "lost with its worker 3 times" in score.reason
        assert judge.judge(*answer(adding(), RIGHT)).verdict == "AC"


def test_a_node_with_other_code_judges_nothing(cluster, monkeypatch):
    monkeypatch.setattr(workers, "code_digest", lambda: "another commit")
    with Judge(SETTINGS) as judge, pytest.raises(MachineUnfit, match="install the same commit"):
        judge.judge(*answer(adding(), RIGHT))


ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements-cpu.lock", "requirements-gpu.lock")


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("configs/catalogue/catalogue.toml", True),
        ("configs/accelerate/ddp.yaml", True),
        ("eval/benchmarks/errata.jsonl", True),
        ("tasks/engine/parts.py", True),
        ("configs/profiles/tiny.yaml", False),  # only the machine that asks reads these
        ("tasks/report/templates/page.css", False),
    ],
)
def test_code_its_data_and_packages_are_compared_and_what_only_this_machine_reads_is_not(
    name: str, decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    for file in (name, *LOCKS):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    monkeypatch.setattr(ray_cluster, "PACKAGE", tmp_path)
    digest = ray_cluster.code_digest.__wrapped__
    before = digest()
    (tmp_path / name).write_text("another")
    assert (digest() != before) == decides
    before = digest()
    monkeypatch.setattr(ray_cluster, "version", lambda name: "0.0.1+cpu")
    other = digest()
    assert other != before
    monkeypatch.setattr(ray_cluster, "version", lambda name: "0.0.1+cu130")  # another build of it
    assert digest() == other
