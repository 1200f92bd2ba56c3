"""Recorded answers are matched by prompt, mapped to our tags, and never lost in silence."""

import gzip
import json
from pathlib import Path

import pytest

from configs.engines import EngineSettings, Sampling
from eval.records import Rejected, problem_id
from training.engines.interface import Request
from training.engines.make import make_engine
from training.engines.recorded import mapped_text, recorded_grades, recordings

TAGS = {
    "think_tags": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "solution_tags": ("<|begin_of_solution|>", "<|end_of_solution|>"),
}


def settings(file: Path, **more) -> EngineSettings:
    return EngineSettings(kind="recorded", files=(str(file),), **more)


def write(path: Path, rows: list) -> Path:
    text = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def row(question: str, response: str, **more) -> dict:
    return {"question": question, "response": response, "model": "sky", **more}


def ask(s: EngineSettings, *prompts: tuple[str, int]) -> dict:
    asked = [Request(problem_id=f"id of {p}", index=i, prompt=p) for p, i in prompts]
    with make_engine(s, Sampling()) as engine:
        return {(x.problem_id, x.index): x for x in engine.answer(asked)}


def test_answers_are_numbered_in_file_order_for_each_prompt_whatever_its_typesetting(tmp_path):
    rows = [row("What is  1+1?", "a"), row("other", "b"), row("WHAT is 1+1?", "c")]
    found = ask(
        settings(write(tmp_path / "r.jsonl.gz", rows)), ("what is 1+1?", 0), ("what is 1+1?", 1)
    )
    assert [x.text for x in found.values()] == ["a", "c"]
    assert set(found) == {("id of what is 1+1?", 0), ("id of what is 1+1?", 1)}
    assert {x.model for x in found.values()} == {"sky"}


def test_what_was_not_recorded_does_not_come_back(tmp_path):
    file = write(tmp_path / "r.jsonl", [row("known", "a")])
    assert set(ask(settings(file), ("known", 0), ("known", 1), ("unknown", 0))) == {
        ("id of known", 0)
    }


@pytest.mark.parametrize(
    ("text", "expected", "finish"),
    [
        (
            "<|begin_of_thought|>\nhm\n<|end_of_thought|>\n<|begin_of_solution|>4<|end_of_solution|>",
            "<think>\nhm\n</think>\n4",
            "stop",
        ),
        ("<|begin_of_thought|> and on and on", "<think> and on and on", "length"),
        ("just \\boxed{4}", "just \\boxed{4}", "stop"),
        ("  \n", "", "empty"),
    ],
)
def test_foreign_tags_become_think_tags_and_cut_thinking_is_marked(text, expected, finish):
    s = EngineSettings(kind="recorded", files=("x",), **TAGS)
    assert mapped_text(text, s) == (expected, finish)


def test_a_prefill_is_put_before_texts_that_lack_it():
    s = EngineSettings(kind="recorded", files=("x",), think_prefill="<think>\n")
    assert mapped_text("hm</think>4", s)[0] == "<think>\nhm</think>4"
    assert mapped_text("<think>hm</think>4", s)[0] == "<think>hm</think>4"


def test_alternative_fields_let_files_of_two_shapes_serve_one_engine(tmp_path):
    rows = [{"query": "q1", "response": "r1"}, {"problem": "q2", "solution": "r2"}]
    s = settings(
        write(tmp_path / "r.jsonl", rows),
        prompt_field="query|problem",
        text_field="response|solution",
        model="people",
    )
    found = ask(s, ("q1", 0), ("q2", 0))
    assert [x.text for x in found.values()] == ["r1", "r2"]
    assert {x.model for x in found.values()} == {"people"}


def test_unusable_rows_are_rejected_with_their_place_and_take_no_index(tmp_path):
    rows = ["{broken\n", {"question": "q"}, row("q", 7), row("q", "good", ok="maybe")]
    file = write(tmp_path / "r.jsonl", [*rows, row("q", "good", ok=True)])
    found = list(recordings(settings(file, grade_field="ok")))
    reasons = [x.reason for x in found if isinstance(x, Rejected)]
    assert reasons[0].startswith("r.jsonl row 1: no JSON")
    assert reasons[1:] == [
        "r.jsonl row 2: field response: missing",
        "r.jsonl row 3: field response: must be text, this is a int",
        "r.jsonl row 4: field ok: 'maybe' is no grade; true, false, 1 or 0 are",
    ]
    (good,) = (x for x in found if not isinstance(x, Rejected))
    assert good.sample.index == 0


def test_published_grades_are_given_for_the_asked_answers_only(tmp_path):
    rows = [row("q", "a", ok=True), row("q", "b", ok=0), row("q", "c"), row("other", "d", ok=True)]
    s = settings(write(tmp_path / "r.jsonl", rows), grade_field="ok")
    q = problem_id("q")
    grades = recorded_grades(s, {(q, 0), (q, 1), (q, 2)})
    assert [(g.index, g.correct, g.model) for g in grades] == [(0, True, "sky"), (1, False, "sky")]


def test_a_missing_file_names_the_setting(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"engine\.files: no file .*none\.jsonl"):
        ask(settings(tmp_path / "none.jsonl"), ("q", 0))
