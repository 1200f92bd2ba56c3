"""The scripted teacher, recorded answers, and a journal of samples that survives kills."""

import gzip
import json
import os
import random
import sys
from pathlib import Path

import pytest
from processes import output_of

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.families import by_example, countdown
from klear.eval.records import Rejected, Sample, problem_id
from klear.training.engines import generate as module
from klear.training.engines.generate import Journal, make_engine
from klear.training.engines.interface import Request, request_seed
from klear.training.engines.recorded import mapped_text, recordings

SCRIPTED = EngineSettings(kind="scripted", model="teacher")
TAGS = {
    "think_tags": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "solution_tags": ("<|begin_of_solution|>", "<|end_of_solution|>"),
}


def answers(settings: EngineSettings, requests: list[Request]) -> dict[tuple[str, int], Sample]:
    with make_engine(settings, Sampling()) as engine:
        return {(s.problem_id, s.index): s for s in engine.answer(requests)}


def test_the_teacher_answers_every_request_once_by_its_own_seed():
    problems = [
        p for f in (countdown, by_example) for p in f.generate(random.Random(0), 30, "train")
    ]
    requests = [
        Request(problem_id=p.id, index=i, prompt=p.prompt, seed=request_seed(0, p.id, i))
        for p in problems
        for i in range(2)
    ]
    forwards = answers(SCRIPTED, requests)
    assert forwards == answers(SCRIPTED, requests[::-1])
    assert set(forwards) == {r.key for r in requests}
    assert {s.model for s in forwards.values()} == {"teacher"}
    differ = [forwards[p.id, 0].text != forwards[p.id, 1].text for p in problems]
    assert sum(differ) > len(differ) / 2


def test_the_teacher_slips_more_on_a_source_that_says_so():
    """A slip in every line against none: the same question, asked under two names of a source."""
    settings = EngineSettings(
        kind="scripted", error_rate=0.0, source_error_rates={"bad": 1.0}, brief_rate=0.0
    )
    prompt = next(iter(countdown.generate(random.Random(0), 1, "train"))).prompt

    def texts(part: str) -> list[str]:
        requests = [
            Request(problem_id="p", index=i, prompt=prompt, seed=i, part=part) for i in range(20)
        ]
        return [s.text for s in answers(settings, requests).values()]

    assert texts("good") == texts("") != texts("bad")


def test_the_interface_and_the_factory_import_no_torch():
    code = (
        "import sys, klear.training.engines.generate, klear.training.engines.endpoint\n"
        "print(*{'torch', 'transformers', 'vllm'} & set(sys.modules))"
    )
    assert not output_of(sys.executable, "-c", code).strip()


def recorded(path: Path, rows: list, **more) -> EngineSettings:
    text = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return EngineSettings(kind="recorded", files=(str(path),), **more)


def row(question: str, response: object, **more) -> dict:
    return {"question": question, "response": response, "model": "sky", **more}


def asked_of(settings: EngineSettings, *prompts: tuple[str, int]) -> dict:
    return answers(
        settings, [Request(problem_id=problem_id(p), index=i, prompt=p) for p, i in prompts]
    )


def test_answers_are_numbered_in_file_order_for_each_prompt_whatever_its_typesetting(tmp_path):
    rows = [row("What is  1+1?", "a"), row("other", "b"), row("WHAT is 1+1?", "c")]
    settings = recorded(tmp_path / "r.jsonl.gz", rows)
    samples = asked_of(settings, *(("what is 1+1?", i) for i in range(3)), ("unknown", 0))
    assert {key: s.text for key, s in samples.items()} == {
        (problem_id("what is 1+1?"), 0): "a",
        (problem_id("what is 1+1?"), 1): "c",
    }
    assert {s.model for s in samples.values()} == {"sky"}


@pytest.mark.parametrize(
    ("text", "more", "expected", "finish"),
    [
        (
            "<|begin_of_thought|>\nhm\n<|end_of_thought|>\n<|begin_of_solution|>4<|end_of_solution|>",
            TAGS,
            "<think>\nhm\n</think>\n4",
            "stop",
        ),
        ("<|begin_of_thought|> and on and on", TAGS, "<think> and on and on", "length"),
        ("just \\boxed{4}", TAGS, "just \\boxed{4}", "stop"),
        ("  \n", TAGS, "", "empty"),
        ("hm</think>4", {"think_prefill": "<think>\n"}, "<think>\nhm</think>4", "stop"),
        ("<think>hm</think>4", {"think_prefill": "<think>\n"}, "<think>hm</think>4", "stop"),
    ],
)
def test_foreign_tags_and_prefills_become_think_tags_and_cut_thinking_is_marked(
    text, more, expected, finish
):
    settings = EngineSettings(kind="recorded", files=("x",), **more)
    assert mapped_text(text, settings) == (expected, finish)


def test_alternative_fields_let_files_of_two_shapes_serve_one_engine(tmp_path):
    rows = [{"query": "q1", "response": "r1"}, {"problem": "q2", "solution": "r2"}]
    fields = {"prompt_field": "query|problem", "text_field": "response|solution"}
    settings = recorded(tmp_path / "r.jsonl", rows, **fields, model="people")
    samples = asked_of(settings, ("q1", 0), ("q2", 0))
    assert [(s.text, s.model) for s in samples.values()] == [("r1", "people"), ("r2", "people")]


def test_unusable_rows_are_rejected_with_their_place_and_take_no_index(tmp_path):
    rows = ["{broken\n", {"question": "q"}, row("q", 7), row("q", "good", ok="maybe")]
    settings = recorded(tmp_path / "r.jsonl", [*rows, row("q", "good", ok=True)], grade_field="ok")
    parsed = list(recordings(settings))
    reasons = [x.reason for x in parsed if isinstance(x, Rejected)]
    assert reasons[0].startswith("r.jsonl row 1: no JSON")
    assert reasons[1:] == [
        "r.jsonl row 2: field response: missing",
        "r.jsonl row 3: field response: must be text, this is a int",
        "r.jsonl row 4: field ok: 'maybe' is no grade; true, false, 1 or 0 are",
    ]
    (good,) = (x for x in parsed if not isinstance(x, Rejected))
    assert good.sample.index == 0
    assert (good.grade.index, good.grade.correct, good.grade.model) == (0, True, "sky")


def test_an_answer_that_thinks_in_tags_that_nobody_named_is_rejected_with_the_setting(tmp_path):
    rows = [row("q", r"<seed:think>\boxed{41}?</seed:think> \boxed{42}")]
    (rejected,) = recordings(recorded(tmp_path / "r.jsonl", rows))
    assert 'set engine.think_tags=\'["<seed:think>", "</seed:think>"]\'' in rejected.reason


def sample(i: int, text: str = "text") -> Sample:
    return Sample(
        problem_id=f"p{i % 3}", index=i, model="m", text=f"{text} {i} ∑\n",
        prompt_tokens=10, completion_tokens=i,
    )  # fmt: skip


def test_samples_come_back_in_the_order_of_the_keys_with_tokens_and_cost_also_after_a_kill(
    tmp_path,
):
    """The first of a key stays."""
    runtime = EngineRuntime(input_price=1.0, output_price=2.0)
    path, free = tmp_path / "j.jsonl", EngineSettings(kind="scripted")
    prices = free.model_copy(update={"runtime": runtime})
    with Journal(path) as journal:
        for i in (4, 0, 2):
            journal.append(sample(i))
        journal.append(sample(0, "second"))
        keys = [("p0", 0), ("p1", 1), ("p2", 2), ("p1", 4)]
        assert list(journal.samples(keys)) == [sample(0), sample(2), sample(4)]
        figures = journal.figures(prices)
    assert figures == {
        "samples": 3, "tokens": 6, "prompt_tokens": 30, "cost": pytest.approx(42e-6)
    }  # fmt: skip
    with Journal(path) as journal:
        assert journal.figures(prices) == figures
        assert "cost" not in journal.figures(free)


def test_a_file_cut_at_any_byte_keeps_every_whole_line_and_takes_new_ones(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        for i in range(3):
            journal.append(sample(i))
    content = path.read_bytes()
    for cut in [*range(len(content) + 1), -1]:
        # Last: blocks of zeros, as a power cut leaves them.
        path.write_bytes(content[:cut] if cut >= 0 else content + b"\0" * 512 + b"\n")
        lines = content[:cut].count(b"\n") if cut >= 0 else 3
        with Journal(path) as journal:
            assert len(journal) == lines
            journal.append(sample(7))
        with Journal(path) as journal:
            assert len(journal) == lines + 1
            assert list(journal.samples([("p1", 7)])) == [sample(7)]


def test_each_sample_is_forced_to_disk_before_the_call_returns_where_it_is_paid_for(
    tmp_path, monkeypatch
):
    forced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda fd: (forced.append(fd), real(fd))[1])
    with Journal(tmp_path / "j.jsonl", sync_each=True) as journal:
        for i in range(5):
            journal.append(sample(i))
            assert len(forced) == i + 1
