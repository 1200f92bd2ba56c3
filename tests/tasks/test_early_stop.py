"""Early stop: a prompt with enough right answers is asked no more, whatever is killed between."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.settings.data import SampleSettings
from configs.settings.engines import EarlyStop, EngineRuntime, EngineSettings
from eval.records import Problem, Sample
from eval.tables import read_table, write_table
from tasks.answers import asking
from tasks.answers.distill import distill
from tasks.store.store import Artifact
from training.engines.interface import EngineError, Request

FIRST_RIGHT = {"p0": 0, "p1": 3, "p2": 5, "p3": 99}
"""From which index on the answers to a prompt are right."""


class Teacher:
    """Right from a known index on; dies after `patience` answers."""

    patience = 10**9
    asked: list[tuple[str, int]]

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Teacher":
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        for r in requests:
            if len(Teacher.asked) == Teacher.patience:
                raise EngineError("gone")
            Teacher.asked.append((r.prompt, r.index))
            box = "1" if r.index >= FIRST_RIGHT[r.prompt] else "2"
            text = f"<think>\nhm\n</think>\n\n\\boxed{{{box}}}"
            yield Sample(
                problem_id=r.problem_id, index=r.index, model="m", text=text, completion_tokens=1
            )


@pytest.fixture
def problems(tmp_path, monkeypatch) -> Artifact:
    folder = tmp_path / "problems"
    folder.mkdir()
    rows = [Problem(domain="math", prompt=p, answer="1", source="s") for p in FIRST_RIGHT]
    write_table(folder / "kept.parquet", Problem, rows)
    Teacher.asked, Teacher.patience = [], 10**9
    monkeypatch.setattr(asking, "make_engine", Teacher)
    return Artifact.of_folder(folder)


def run(out: Path, problems: Artifact, **early: Any) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    runtime = EngineRuntime(**early.pop("runtime", {}))
    settings = SampleSettings(
        samples_per_prompt=8,
        engine=EngineSettings(kind="scripted", runtime=runtime),
        early_stop=EarlyStop(**early) if early else None,
    )
    return dict(distill.body(out, problems, settings=settings, seed=0))


def test_each_prompt_is_asked_in_rounds_until_it_has_enough_right_answers(tmp_path, problems):
    """Rounds of 2 and one right answer: p0 after round 1, p1 after 2, p2 after 3, p3 never."""
    metrics = run(tmp_path / "o", problems, right=1, at_once=2)
    assert Counter(p for p, _ in Teacher.asked) == {"p0": 2, "p1": 4, "p2": 6, "p3": 8}
    assert metrics["samples"] == 2 + 4 + 6 + 8
    assert metrics["stopped_early"] == 3
    assert metrics["problems_without_answer"] == 0
    Teacher.asked = []  # three right answers: p0 has them at index 2, p1 at 5, p2 at 7, the last
    run(tmp_path / "three", problems, right=3, at_once=3)
    assert Counter(p for p, _ in Teacher.asked) == {"p0": 3, "p1": 6, "p2": 8, "p3": 8}


def test_killed_anywhere_it_ends_with_the_same_samples_and_asks_nothing_twice(tmp_path, problems):
    run(tmp_path / "whole", problems, right=1, at_once=2)
    whole = (tmp_path / "whole" / "samples.parquet").read_bytes()
    for patience in (1, 8, 13, 19):
        Teacher.asked, Teacher.patience = [], patience
        out = tmp_path / f"o{patience}"
        with pytest.raises(EngineError):
            run(out, problems, right=1, at_once=2)
        Teacher.patience = 10**9
        run(out, problems, right=1, at_once=2)
        assert (out / "samples.parquet").read_bytes() == whole
        assert len(Teacher.asked) == len(set(Teacher.asked)) == 20
    assert len(list(read_table(tmp_path / "whole" / "samples.parquet", Sample))) == 20


def test_finished_rounds_of_a_killed_stage_need_no_approval_again(tmp_path, problems):
    """20 answers were approved and bought; the whole plan of 32 would cost more than is allowed."""
    priced = {"output_price": 1e6, "input_price": 1e6, "pilot_prompts": 2, "approve_above": 0.5}
    out = tmp_path / "o"
    run(out, problems, right=1, at_once=2, runtime={**priced, "approved_cost": 1e9})
    before = (out / "samples.parquet").read_bytes()
    (out / "samples.parquet").unlink()
    run(out, problems, right=1, at_once=2, runtime=priced)
    assert (out / "samples.parquet").read_bytes() == before
    assert len(Teacher.asked) == 20
