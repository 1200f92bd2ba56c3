"""Parts and the judge on a cluster of two nodes: what they share, what no death changes, and what
they do while every CPU is held for days by the judge of another run."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from processes import at_least, eventually, killing, left

from klear.configs.loading import load_profile
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.configs.settings.topology import Launch
from klear.eval import ray_cluster
from klear.eval.judge import workers
from klear.eval.judge.judge import Judge
from klear.eval.progress import listening
from klear.eval.ray_cluster import BUSY, join
from klear.eval.records import Problem
from klear.eval.sandbox import MachineUnfit
from klear.flows.run import compute
from klear.tasks.engine.events import Event, Observer, Progress, Started
from klear.tasks.engine.parts import computed_parts
from klear.tasks.engine.run import Run, active
from klear.tasks.models import launch
from klear.tasks.store.store import Store
from tests.cluster import parts_of_tests as work

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
RIGHT = "print(sum(map(int, input().split())))"
SURD = (
    Problem(domain="math", prompt="The root of 8?", answer=r"2\sqrt{2}"),
    r"<think></think>\boxed{\sqrt{8}}",
)
SLOW = f"import time; time.sleep(0.4)\n{RIGHT}"

HELD_S = 120.0
PATIENCE_S = 8.0
POLL_S = 0.2
NOTES = 5


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


@pytest.mark.system
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


@pytest.mark.system
def test_a_part_that_is_lost_every_time_is_an_error_with_advice(cluster, place):
    with pytest.raises(RuntimeError, match=r"part 00000 was lost 4 times .* smaller parts"):
        list(computed_parts(place / "parts", [0, 1], work.die_at_zero, workers=2))


@pytest.mark.system
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


def test_programs_and_a_large_suite_and_math_are_judged_at_once(cluster):
    problem = adding(200_000)
    with Judge(SETTINGS) as judge:
        waiting = [judge.submit(*answer(problem, (RIGHT, "print(3)")[i % 2], i)) for i in range(8)]
        assert judge.judge(*SURD).verdict == "AC"
        assert [wait().verdict for wait in waiting] == ["AC", "WA"] * 4


@pytest.mark.system
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


@pytest.fixture
def others(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """An actor on each CPU of both nodes; a test may kill them."""
    for module in (ray_cluster, workers):
        monkeypatch.setattr(module, "POLL_S", POLL_S)
    api: Any = join(cluster.address)
    actors = [api.remote(work.Other).options(num_cpus=1).remote() for _ in range(2)]
    api.get([actor.is_up.remote() for actor in actors], timeout=HELD_S)
    deadline = time.monotonic() + HELD_S
    while api.available_resources().get("CPU", 0):  # it is told a moment later
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    yield actors
    end(actors)


def end(actors: list[Any]) -> None:
    api: Any = ray
    while actors:
        api.kill(actors.pop())


@pytest.mark.system
def test_parts_wait_for_a_cpu_for_as_long_as_it_takes_and_say_so(
    others: list[Any], place: Path
) -> None:
    messages: list[str] = []
    moved = [time.monotonic()]

    def listen(done: float, total: float, note: str) -> None:
        messages.append(f"{done:g} of {total:g} {note}")
        assert time.monotonic() <= moved[-1] + PATIENCE_S
        moved.append(time.monotonic())
        if len(messages) == NOTES:
            end(others)

    with listening(listen):
        folders = list(computed_parts(place / "parts", [1, 2, 3], work.write_square))
    assert [int((folder / "square").read_text()) for folder in folders] == [1, 4, 9]
    assert messages[:NOTES] == [f"0 of 0 {BUSY}"] * NOTES
    assert messages[-3:] == ["1 of 3 parts", "2 of 3 parts", "3 of 3 parts"]


@pytest.mark.system
def test_an_answer_that_waits_for_a_cpu_says_so_and_one_that_takes_long_does_not(
    others: list[Any],
) -> None:
    messages: list[str] = []

    def tell(done: float, total: float, note: str) -> None:
        messages.append(note)
        if len(messages) == NOTES:
            end(others)

    with listening(tell), Judge(JudgeSettings(runtime=JudgeRuntime(workers=2))) as judge:
        assert judge.judge(*SURD).verdict == "AC"
        assert set(messages) == {BUSY}
        waited = len(messages)
        assert waited >= NOTES
        assert judge.judge(*answer(adding(), SLOW)).verdict == "AC"
    assert len(messages) == waited


@pytest.mark.system
@pytest.mark.usefixtures("others")
def test_training_begins_while_a_judge_holds_every_cpu() -> None:
    api: Any = ray
    places = launch.node_task_options(api, Launch(nodes=2))
    nodes = [api.remote(work.node_id).options(**place).remote() for place in places]
    assert len(set(api.get(nodes, timeout=HELD_S))) == 2
    api.util.remove_placement_group(places[0]["scheduling_strategy"].placement_group)


def tiny() -> Any:
    """Some of the profile's problems in small parts, and enough answers to keep two nodes
    judging."""
    small = [f"{s}.runtime.rows_per_part=200" for s in ("dedup", "decontaminate")]
    small += [f"collect.sources.{s}.size=300" for s in ("countdown", "by_example")]
    math = ["distill.sources=[countdown]", "distill.samples_per_prompt=1"]
    code = ["sample.sources=[by_example_rl]", "sample.samples_per_prompt=1"]
    return load_profile("tiny", [*small, *math, *code])


def digests(store: Path, *observers: Observer) -> dict[str, str]:
    with active(Run(store=Store(store), observers=observers)):
        results = compute(tiny(), until="filter_rl")
    return {artifact.stage: artifact.digest for artifact in results.values()}


class NodeKiller:
    """An observer of the run that kills the last node in the middle of two stages."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.killed = cluster, list[str]()

    def on(self, event: Event) -> None:
        match event:
            case Started(task) if task.stage in ("dedup", "judge_rl"):
                self.cluster.second()
            case Progress(stage, done) if done >= 1 and stage not in self.killed:
                self.progress(stage, done)

    def progress(self, stage: str, done: float) -> None:
        if stage == "judge_rl" and done == 1:
            at_least(1, self.judging)
        if stage == "collect" or (stage == "judge_rl" and self.judging()):
            self.killed.append(stage)
            self.cluster.kill(self.cluster.nodes[-1])

    def judging(self) -> list[psutil.Process]:
        return self.cluster.processes("ray::judge_on_node", slice(-1, None))


@pytest.mark.system
def test_nodes_killed_in_the_middle_change_no_digest(cluster, place, hidden, monkeypatch):
    killer = NodeKiller(cluster)
    over_two_nodes = digests(place / "store", killer)
    assert killer.killed == ["collect", "judge_rl"]
    monkeypatch.delenv("KLEAR_RAY_ADDRESS")
    assert over_two_nodes == digests(hidden / "local")


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
