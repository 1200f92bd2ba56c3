"""Published answers: collected with the rows that bring them, judged like all others, and what has
none goes to the fallback or is counted.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Problem, Rejected, Sample, problem_id
from klear.eval.tables import read_table
from klear.flows.stages import calls
from klear.tasks.answers.distill import distill
from klear.tasks.data.collect import collect
from klear.tasks.store.store import Artifact

ONE = ["<think>a</think>1", "<think>b</think>2", "never </think> opened"]
ROWS: list[dict[str, Any]] = [
    {"problem": "One?", "answer": "1", "generations": [*ONE[:1], None, "", *ONE[1:2]]},
    {"problem": "Two?", "answer": "2", "generations": [{"role": "user", "content": "Two?"},
                                                        {"role": "assistant", "content": "2"}]},
    {"problem": "One?", "answer": "1", "generations": ONE[2]},
    {"problem": "Three?", "answer": "3"},
    {"problem": "Four?", "answer": "4", "generations": 4},
]  # fmt: skip
FROM_ROWS = EngineSettings.model_validate({"kind": "recorded", "from": "catalogue"})


@pytest.fixture
def collected(tmp_path: Path) -> Artifact:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = Source(
        name="traced", files=("rows.jsonl",), trace_fields=("generations",), trace_model="R1"
    )
    out = tmp_path / "collected"
    out.mkdir()
    settings = CollectSettings(root=str(tmp_path), sources=(source,), traces=True)
    counts = collect.body(out, settings=settings, seed=0)
    assert (counts["kept/traced"], counts["traces/traced"]) == (4, 4)
    (wrong,) = read_table(out / "rejected.parquet", Rejected)
    assert wrong.reason == "rows.jsonl row 5: field generations: must be text, this is a int"
    return Artifact.of_folder(out)


def answered(out: Path, collected: Artifact, **more: Any) -> tuple[list[tuple[str, str, str]], Any]:
    out.mkdir()
    settings = SampleSettings(engine=FROM_ROWS, samples_per_prompt=3, **more)
    counts = distill.body(out, collected, collected, settings=settings, seed=0)
    prompts = {p.id: p.prompt for p in read_table(collected.file("kept.parquet"), Problem)}
    samples = read_table(out / "samples.parquet", Sample)
    return [(prompts[s.problem_id], s.model, s.text) for s in samples], counts


def test_published_answers_are_samples_and_prompts_without_one_are_counted(collected, tmp_path):
    """The third answer to One? came with another row of the same prompt."""
    samples, counts = answered(tmp_path / "out", collected)
    assert samples == [*(("One?", "R1", text) for text in ONE), ("Two?", "R1", "2")]
    assert (counts["published"], counts["prompts_without_trace"]) == (4, 1)
    (left,) = read_table(tmp_path / "out/rejected.parquet", Rejected)
    assert (left.id, counts["problems_without_answer"]) == (problem_id("Three?"), 1)


def test_the_fallback_answers_prompts_without_one_as_often_as_asked(collected, tmp_path):
    (tmp_path / "more.jsonl").write_text('{"question": "Three?", "response": "3"}\n' * 3)
    other = EngineSettings(kind="recorded", model="other", files=(str(tmp_path / "more.jsonl"),))
    samples, counts = answered(tmp_path / "out", collected, fallback=other)
    assert [s[:2] for s in samples] == [("One?", "R1")] * 3 + [("Two?", "R1")] + [
        ("Three?", "other")
    ] * 3
    assert counts["problems_without_answer"] == 0


def test_a_killed_stage_keeps_each_published_answer_once(collected, tmp_path):
    samples, counts = answered(tmp_path / "out", collected)
    (tmp_path / "out").rename(tmp_path / "first")
    assert answered(tmp_path / "out", collected) == (samples, counts)


def test_the_graph_gives_the_rows_to_the_stage_that_takes_their_answers():
    engine = {"kind": "recorded", "from": "catalogue"}
    teachers = {"distill": {"engine": engine}, "sample": {"engine": {"kind": "scripted"}}}
    rows = {"sources": [{"use": "deepmath"}]}
    told = {"profile": "x", "collect": rows, "benchmarks": {"sources": [{"use": "aime24"}]}}
    settings = Pipeline.model_validate(told | teachers)
    assert settings.collect.to_read(0).trace_fields == (
        "r1_solution_1",
        "r1_solution_2",
        "r1_solution_3",
    )
    inputs = {name: call.inputs for name, call in calls(settings).items()}
    assert inputs["distill"] == ("decontaminate", "collect")
    assert inputs["sample"] == ("filter_tests",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": {"kind": "openai", "from": "catalogue"}}, "goes with kind=recorded"),
        (
            {"engine": {"kind": "scripted"}, "fallback": {"kind": "scripted"}},
            "fallback needs engine",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises((ValueError, ConfigError), match=message):
        SampleSettings.model_validate(wrong)
