"""`klear plan`: every profile plans on a machine that has run nothing."""

import json

import pytest
from home import KLEAR, ROOT
from processes import output_of

from klear import flows
from klear.configs.loading import load_profile
from klear.configs.settings.pipeline import STAGES
from klear.configs.settings.topology import Topology
from klear.flows.plan import Plan, critical_path, plan, refuse_without_gpu, rows, summary
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.models.train import base, local_model
from klear.tasks.planning.source_rows import CHAT_TOKENS
from klear.tasks.report.page import literal
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.store.store import Store
from klear.training.sizing import DoesNotFit

FOR_SFT = {"distill", "judge", "difficulty", "select", "sft", "evaluate_sft"}


def of(store):
    return Run(store=Store(store))


def by_stage(tmp_path, *changes):
    """The plan of the paper on an empty store, by stage."""
    return {s.stage: s for s in plan(load_profile("paper", changes), of(tmp_path))}


@pytest.mark.parametrize("profile", ["tiny", "single_gpu", "single_gpu_8b", "paper"])
def test_a_profile_plans_every_stage_and_ends_where_the_run_would(tmp_path, profile):
    settings = load_profile(profile)
    stages = plan(settings, of(tmp_path))
    expected = [name for name in STAGES if name not in settings.stages_left_out]
    assert sorted(s.stage for s in stages) == sorted(expected)
    assert {s.action for s in stages} == {"compute"}
    assert plan(settings, of(tmp_path), until="dedup")[-1].stage == "dedup"


def test_a_run_until_a_stage_computes_only_what_that_is_made_from(tmp_path):
    stages = {s.stage: s for s in plan(load_profile("open_traces"), of(tmp_path), until="sft")}
    assert {"distill", "judge", "select", "sft"} <= stages.keys()
    assert not stages.keys() & {"sample", "judge_rl", "filter_rl", "rl_math"}  # a teacher's tokens
    assert stages["distill"].binds == ""


def test_a_plan_says_that_it_does_not_count_what_a_fallback_answers(tmp_path):
    paid = "distill.fallback={kind: openai, model: m, base_url: http://127.0.0.1:9/v1}"
    stages = {s.stage: s for s in plan(load_profile("open_traces", [paid]), of(tmp_path))}
    assert stages["distill"].binds == "answers of the fallback are not counted"


@pytest.mark.parametrize("profile", ["tiny", "paper"])
@pytest.mark.parametrize(
    ("stands_for", "gone"),
    [("base", set()), ("sft", FOR_SFT), ("rl_math", FOR_SFT | {"rl_math", "evaluate_rl_math"})],
)
def test_training_starts_from_any_model_and_the_stages_before_it_leave_the_plan(
    tmp_path, profile, stands_for, gone
):
    def planned(**base):
        settings = load_profile(profile)
        start = settings.base.model_copy(update={"kind": "pretrained", **base})
        settings = settings.model_copy(update={"base": start})
        return {s.stage for s in plan(settings, of(tmp_path))}

    everything = planned(stands_for="base")
    stages = planned(stands_for=stands_for, model="Kwai-Klear/Klear-Reasoner-8B-SFT")
    rating = {"rate", "judge_rate"} if stands_for != "base" else set()
    assert everything - stages == (gone | rating) & everything
    assert {"base", "rl_code", "evaluate_base", "report"} <= stages


def test_a_local_model_that_changes_is_another_start(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    model = load_profile("paper").base.model_copy(update={"model": str(tmp_path)})
    assert list(local_model(model)) == [("config.json", tmp_path / "config.json")]
    assert list(local_model(load_profile("paper").base)) == []


@pytest.mark.parametrize("change", ["another name", "a file behind a link"])
def test_a_model_whose_files_change_in_any_way_is_another_start(tmp_path, change):
    model, disk = tmp_path / "model", tmp_path / "disk"
    for path in (model / "config.json", disk / "weights"):
        path.parent.mkdir()
        path.write_text(path.name)
    (model / "data").symlink_to(disk)
    (disk / "circle").symlink_to(model)
    settings, run = load_profile("paper").base, of(tmp_path)
    settings = settings.model_copy(update={"model": str(model)})
    before = base.key((), settings, run)
    assert base.key((), settings, run) == before
    if change == "another name":
        (model / "config.json").rename(model / "config.json.off")
    else:
        (disk / "weights").write_text("others")
    assert base.key((), settings, run) != before


def test_the_paper_plans_on_a_laptop_with_every_assumption_printed(tmp_path):
    """No server, an empty store, a terminal of 80 columns."""
    bare = {"KLEAR_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "80"}
    output = output_of(*KLEAR, "plan", "paper", cwd=ROOT, env=bare)
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    for text in ("never computed", "23 to compute", "4 × 8 = 32 H100", "GPU-hours"):
        assert text in output
    for text in ("sft_prompts = 93,750", "rl_prompts = 106,000", "train_mfu = 0.4"):
        assert text in output.partition("Assumptions")[2]


def test_the_plan_of_the_paper_counts_the_papers_numbers(tmp_path):
    stages = by_stage(tmp_path)
    answers = 93_750 * 16
    assert answers == 1_500_000  # §3.1
    assert stages["distill"].tokens == answers * 10_000
    assert stages["sft"].tokens == 4 * answers * 10_300
    assert stages["sample"].tokens == 16 * (88_000 + 18_000) / 0.5 * 10_000
    todo = [s for s in stages.values() if s.gpu_hours is not None]
    assert {"sft", "rl_math", "rl_code", "rate"} <= {s.stage for s in todo}
    assert all(s.assumed for s in todo)
    endpoints = ("distill", "sample")  # of endpoints that nobody has measured
    assert [stages[name].seconds for name in endpoints] == [None, None]


def test_the_plan_of_the_paper_names_whose_prices_it_takes_and_of_when(tmp_path):
    at = "distill.engine.base_url=https://api.together.ai/v1"
    model = "distill.engine.model=deepseek-ai/DeepSeek-R1"
    settings = load_profile("paper", [at, model])
    stages = plan(settings, of(tmp_path))
    (distill,) = (s for s in stages if s.stage == "distill")
    prompts, answers = 1_500_000 * 300, 1_500_000 * 10_000
    assert distill.cost == pytest.approx((prompts * 3 + answers * 7) / 1e6)
    text = summary(stages)
    assert "distill: USD, deepseek-ai/DeepSeek-R1 at api.together.ai, 2026-" in text
    assert "sample: none known of deepseek-ai/DeepSeek-R1 at http://127.0.0.1:8000/v1" in text
    ours = by_stage(tmp_path, at, model, "distill.engine.runtime.output_price=1")
    assert ours["distill"].cost == pytest.approx(answers / 1e6)


def test_a_rate_of_ones_own_takes_the_place_of_an_assumption(tmp_path):
    paper, ours = by_stage(tmp_path), by_stage(tmp_path, "topology.assume.train_mfu=0.35")
    assert ours["sft"].seconds == pytest.approx((paper["sft"].seconds or 0) * 0.4 / 0.35)
    assert ours["rate"].seconds == paper["rate"].seconds


def test_what_cannot_run_is_said_in_the_plan_and_refused_by_a_run(tmp_path):
    settings = load_profile("paper", ["topology.rl_gpus=0"])
    stages = plan(settings, of(tmp_path))
    (problem,) = stages.problems
    assert problem.startswith("rl_math: 16 prompts a mini-batch cannot be shared by 32 GPUs")
    assert str(literal(problem.partition(": ")[2])) in summary(stages)
    with active(of(tmp_path)), pytest.raises(DoesNotFit, match="rl_math"):
        compute(settings)
    assert not list(tmp_path.iterdir())


def test_what_needs_a_gpu_is_refused_before_its_first_stage_on_a_machine_without(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(flows.plan, "gpus", lambda: "")
    monkeypatch.setattr(flows.plan.shutil, "which", lambda _: None)
    settings = load_profile("single_gpu")
    refuse_without_gpu(plan(settings, of(tmp_path), until="dedup"))
    refuse_without_gpu(plan(load_profile("tiny"), of(tmp_path)))
    with pytest.raises(DoesNotFit, match=r"distill, .*sft, .*planned for 1 H100; .* has no GPU"):
        refuse_without_gpu(plan(settings, of(tmp_path)))
    monkeypatch.setattr(flows.plan, "gpus", lambda: "1 × NVIDIA H200")
    refuse_without_gpu(plan(settings, of(tmp_path)))


def test_the_sum_is_of_what_is_left_and_names_what_is_assumed_or_was_never_measured():
    reused = PlannedStage("a", "reuse", "", seconds=50.0)
    unknown = PlannedStage("c", "compute", "never computed")
    assumed = PlannedStage("d", "compute", "", seconds=3600.0, gpu_hours=8.0, assumed=True)
    assert summary(Plan([reused, unknown, assumed], Topology())) == (
        "1 to reuse, 2 to compute; ≈1 h 00 min + c (never measured), 8 GPU-hours"
    )
    assert summary(Plan([unknown], Topology())) == "1 to compute; c (never measured)"


def test_what_nobody_knows_is_a_dash_and_named_in_the_sum(tmp_path):
    """A profile that does not extend the paper's, on a dataset that nobody has counted: nothing of
    the paper's sizes is in its plan."""
    sources = (
        "[{name: mine, kind: hub, dataset: some/body, trace_fields: [answer], trace_model: us}]"
    )
    stages = plan(load_profile("pocket", [f"collect.sources={sources}"]), of(tmp_path))
    table, text = rows(stages), summary(stages)
    assert "nan" not in f"{table} {text}"
    shown = {row["stage"]: row for row in table}
    assert [shown["collect"][column] for column in ("rows", "time", "disk")] == ["–"] * 3
    assert shown["benchmarks"]["rows"] == "300"  # by their limits, of what the catalogue counted
    assert shown["sft"]["tokens"] == "–"
    named = text.partition(" (sizes unknown)")[0].rpartition(" + ")[2].split(", ")
    assert {"collect", "dedup", "distill", "judge", "sft"} <= {*named}
    assert not {"base", "rl_math", "evaluate_sft"} & {*named}
    assert not {"sft_prompts", "rl_prompts"} & {n for s in stages for n in s.assumptions}


def test_local_rows_are_planned_by_their_number_and_length(tmp_path):
    row = {"question": "How many " + "apples " * 40, "answer": "2 " * 50 + "#### 100"}
    lines = [json.dumps({**row, "question": f"{i}? {row['question']}"}) for i in range(80)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    source = "{use: gsm8k_train, files: [train.jsonl], trace_fields: [answer], trace_model: us}"
    changes = [f"data.root={tmp_path}", f"collect.sources=[{source}]"]
    stages = {s.stage: s for s in plan(load_profile("pocket", changes), of(tmp_path / "store"))}
    assert rows([stages["collect"]])[0]["rows"] == "80"
    prompt, answer = 1 + 2 + 40, 50 + 4 + 12  # the number has one or two digits; think tags, a box
    expected = 2 * 80 * (prompt + 1.9 + answer + CHAT_TOKENS)
    assert stages["sft"].tokens == pytest.approx(expected, rel=0.01)
    assert stages["rl_math"].tokens == pytest.approx(40 * 16 * 8 * answer, rel=0.01)


def test_golds_for_nobody_and_for_everybody_are_said():
    counts = {"kept": 20.0, "unjudgeable": 3.0, "guessable": 12.0}
    text = summary(Plan([PlannedStage("collect", "reuse", counts=counts)], Topology()))
    assert "golds of collect: 3 that nobody can match, 12 that guessing matches" in text


def test_the_critical_path_is_the_slowest_way_and_gpus_are_taken_in_turns():
    def line(stage, seconds, *inputs, action="compute", gpu_hours=None):
        fields = {"action": action, "gpu_hours": gpu_hours, "inputs": inputs}
        return PlannedStage(stage, seconds=seconds, **fields)

    data = [line("collect", 100.0, action="reuse"), line("a", 5.0, "collect"), line("b", 7.0)]
    assert critical_path([*data, line("report", 1.0, "a", "b")]) == (8.0, ["b", "report"])
    on_gpus = [line("sft", 10.0, "a", gpu_hours=1.0), line("evaluate_base", 4.0, gpu_hours=1.0)]
    assert critical_path([*data, *on_gpus]) == (19.0, ["a", "sft", "evaluate_base"])
