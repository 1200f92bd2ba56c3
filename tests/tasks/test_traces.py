"""What others have published about a row: answers, judged like all others, and pass rates."""

from pathlib import Path
from typing import Any

import pytest

from klear.configs.loading import load_profile
from klear.configs.settings.data import DifficultySettings, FilterRLSettings, SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Sample, problem_id
from klear.eval.records.tables import read_table
from klear.flows.dag import build_dag
from klear.tasks.answers.difficulty import Difficulty, difficulty
from klear.tasks.answers.distill import NeedsApproval, distill, recorded_files
from klear.tasks.answers.filter_rl import filter_rl
from klear.tasks.data.collect import collect
from klear.tasks.store.store import Artifact
from klear.training.engines import generate
from tests.tasks.manifests_by_hand import jsonl, kept_in, rejected_in
from tests.tasks.test_distill import Teacher

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
    jsonl(tmp_path / "rows.jsonl", *ROWS)
    source = Source(
        name="traced", files=("rows.jsonl",), trace_fields=("generations",), trace_model="R1"
    )
    out = tmp_path / "collected"
    out.mkdir()
    settings = CollectSettings(root=str(tmp_path), sources=(source,), traces=True)
    counts = collect.body(out, settings=settings, seed=0)
    assert (counts["kept/traced"], counts["traces/traced"]) == (4, 4)
    (wrong,) = rejected_in(out)
    assert wrong.reason == "rows.jsonl row 5: field generations: must be text, this is a int"
    return Artifact.of_folder(out)


def answered(out: Path, collected: Artifact, **more: Any) -> tuple[list[tuple[str, str, str]], Any]:
    out.mkdir(exist_ok=True)
    settings = SampleSettings(engine=FROM_ROWS, samples_per_prompt=3, **more)
    counts = distill.body(out, collected, collected, settings=settings, seed=0)
    prompts = {p.id: p.prompt for p in kept_in(collected.folder)}
    samples = read_table(out / "samples.parquet", Sample)
    return [(prompts[s.problem_id], s.model, s.text) for s in samples], counts


def test_published_answers_are_samples_and_prompts_without_one_are_counted(collected, tmp_path):
    """The third answer to One? came with another row of the same prompt."""
    samples, counts = answered(tmp_path / "out", collected)
    assert samples == [*(("One?", "R1", text) for text in ONE), ("Two?", "R1", "2")]
    assert (counts["published"], counts["prompts_without_trace"]) == (4, 1)
    (left,) = rejected_in(tmp_path / "out")
    assert (left.id, counts["problems_without_answer"]) == (problem_id("Three?"), 1)
    assert answered(tmp_path / "out", collected) == (samples, counts)  # killed at its end


def test_the_fallback_answers_prompts_without_one_as_often_as_asked(collected, tmp_path):
    more = jsonl(tmp_path / "more.jsonl", *[{"question": "Three?", "response": "3"}] * 3)
    other = EngineSettings(kind="recorded", model="other", files=(str(more),))
    samples, counts = answered(tmp_path / "out", collected, fallback=other)
    ours, others = [("One?", "R1")] * 3 + [("Two?", "R1")], [("Three?", "other")] * 3
    assert [s[:2] for s in samples] == ours + others
    assert counts["problems_without_answer"] == 0
    assert recorded_files(SampleSettings(engine=FROM_ROWS, fallback=other)) == [more]
    named = "distill.fallback={kind: recorded, model: m, files: [more.jsonl]}"
    fallback = load_profile("open_traces", ["data.root=folder", named]).distill.fallback
    assert fallback
    assert fallback.files == ("folder/more.jsonl",)


def test_only_what_the_fallback_answers_costs_and_is_to_be_approved(
    collected, tmp_path, monkeypatch
):
    """One prompt of three has no published answer; each of its three answers costs 1."""
    teacher = Teacher()
    monkeypatch.setattr(generate, "make_engine", lambda *_: teacher)

    def paid(**budget: float) -> EngineSettings:
        runtime = EngineRuntime.model_validate({"output_price": 10_000.0, **budget})
        return EngineSettings(kind="scripted", runtime=runtime)

    with pytest.raises(NeedsApproval) as refused:
        answered(tmp_path / "out", collected, fallback=paid(approve_above=1.0))
    assert len(teacher.answered) == 1
    assert "3 answers would cost about 3.00" in str(refused.value)
    assert "STAGE.fallback.runtime.approved_cost=3" in str(refused.value)
    approved = paid(approve_above=1.0, approved_cost=3.0)
    samples, counts = answered(tmp_path / "out", collected, fallback=approved)
    assert [s[:2] for s in samples if s[1] != "R1"] == [("Three?", "m")] * 3
    assert counts["cost"] == pytest.approx(3)


def test_stages_that_take_published_pass_rates_sample_nothing_of_their_own():
    """As with published answers (tests/flows/test_open_traces.py)."""
    profile = {"profile": "x", "benchmarks": {"sources": [{"use": "aime24"}]}}
    profile |= {name: {"engine": {"kind": "scripted"}} for name in ("distill", "sample")}
    profile |= {"filter_rl": {"pass_rates": "published"}, "difficulty": {"rater": "published"}}
    profile |= {"collect": {"sources": [{"use": "polaris"}]}}
    settings = Pipeline.model_validate(profile)
    inputs = {name: call.inputs for name, call in build_dag(settings).items()}
    assert settings.collect.to_read(0).pass_rate_field == "difficulty"
    assert inputs["difficulty"] == ("decontaminate", "collect")
    assert inputs["filter_rl"] == ("filter_tests", "collect")
    assert not {"sample", "judge_rl", "rate", "judge_rate"} & set(inputs)


RATES = ["6/8", "2/8", "n/a", None, "6/8", "12/8"]
"""Of problems 0 to 5; problem 4 comes twice, with 6/8 and 0/2."""


@pytest.fixture
def rated(tmp_path: Path) -> Artifact:
    rows = [{"problem": f"P{i}?", "answer": "1", "rate": rate} for i, rate in enumerate(RATES)]
    rows.append({**rows[4], "rate": "0/2"})
    jsonl(tmp_path / "rows.jsonl", *rows)
    source = Source(
        name="rated", files=("rows.jsonl",), pass_rate_field="rate", pass_rate_model="R1"
    )
    (tmp_path / "collected").mkdir()
    settings = CollectSettings(root=str(tmp_path), sources=(source,), pass_rates=True)
    counts = collect.body(tmp_path / "collected", settings=settings, seed=0)
    assert (counts["kept"], counts["rejected"], counts["pass_rates/rated"]) == (6, 1, 4)
    return Artifact.of_folder(tmp_path / "collected").model_copy(update={"stage": "collect"})


def test_published_pass_rates_choose_what_rl_trains_on_and_say_how_hard_a_problem_is(
    rated, tmp_path
):
    out = tmp_path / "out"
    out.mkdir()
    counts = filter_rl.body(out, rated, rated, settings=FilterRLSettings(pass_rates="published"))
    assert [p.prompt for p in kept_in(out)] == ["P0?", "P4?", "P4?"]  # 6 of 8 and 0 of 2: 0.6
    few = "published pass rate 0.25; needs more than 0.5"
    assert [r.reason for r in rejected_in(out)] == [few, *["no published pass rate"] * 2]
    assert counts["published"] == 3
    counts = difficulty.body(out, rated, rated, settings=DifficultySettings(rater="published"))
    difficulties = list(read_table(out / "difficulty.parquet", Difficulty))
    assert [(d.label, d.pass_rate) for d in difficulties[:4]] == [
        ("easy", 0.75), ("hard", 0.25), ("unrated", None), ("unrated", None),
    ]  # fmt: skip
    assert difficulties[4].pass_rate == pytest.approx(0.6)
    assert counts["published"] == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": {"kind": "openai", "from": "catalogue"}}, "goes with kind=recorded"),
        ({"engine": {"kind": "scripted"}, "fallback": {"kind": "scripted"}},
         "fallback needs engine"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises((ValueError, ConfigError), match=message):
        SampleSettings.model_validate(wrong)
