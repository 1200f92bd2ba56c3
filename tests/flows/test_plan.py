"""`klear plan`: every profile plans on a machine that has run nothing."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from klear.configs.loading import load_profile
from klear.configs.settings.pipeline import STAGES
from klear.configs.settings.topology import Topology
from klear.flows.cli import plan as module
from klear.flows.cli.plan import Plan, assumptions, critical_path, plan, print_plan, rows, summary
from klear.flows.stages import run_stages
from klear.tasks.models.train import local_model
from klear.tasks.report.page import literal
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.stage.run import Run, active
from klear.tasks.store.store import Store
from klear.training.sizing import DoesNotFit
from tests.tasks.manifests_by_hand import publish

ROOT = Path(__file__).resolve().parents[2]
FOR_SFT = {"distill", "judge", "difficulty", "select", "sft", "evaluate_sft"}


def by_stage(tmp_path, *told):
    """The plan of the paper on an empty store, by stage."""
    return {s.stage: s for s in plan(load_profile("paper", told), Store(tmp_path))}


@pytest.mark.parametrize("profile", ["tiny", "single_gpu", "paper"])
def test_a_profile_plans_every_stage_and_ends_where_the_run_would(tmp_path, profile):
    settings = load_profile(profile)

    stages = plan(settings, Store(tmp_path))

    expected = [name for name in STAGES if name not in settings.stages_left_out]
    assert sorted(s.stage for s in stages) == sorted(expected)
    assert {s.action for s in stages} == {"compute"}
    assert plan(settings, Store(tmp_path), until="dedup")[-1].stage == "dedup"


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
        return {s.stage for s in plan(settings, Store(tmp_path))}

    everything = planned(stands_for="base")
    found = planned(stands_for=stands_for, model="Kwai-Klear/Klear-Reasoner-8B-SFT")
    rating = {"rate", "judge_rate"} if stands_for != "base" else set()
    assert everything - found == (gone | rating) & everything
    assert {"base", "rl_code", "evaluate_base", "report"} <= found


def test_a_local_model_that_changes_is_another_start(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    base = load_profile("paper").base.model_copy(update={"model": str(tmp_path)})
    assert list(local_model(base)) == [tmp_path / "config.json"]
    assert list(local_model(load_profile("paper").base)) == []


def test_the_paper_plans_on_a_laptop_with_every_assumption_printed(tmp_path):
    """No server, an empty store, a terminal of 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "klear.flows.cli.main", "plan", "paper"],
        cwd=ROOT, env={"KLEAR_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "80"},
        capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for text in ("never computed", "23 to compute", "4 × 8 = 32 H100", "GPU-hours"):
        assert text in done.stdout
    for text in ("sft_prompts = 93,750", "rl_prompts = 106,000", "train_mfu = 0.4"):
        assert text in done.stdout.partition("Assumptions")[2]


def test_the_plan_of_the_paper_counts_the_papers_numbers(tmp_path):
    stages = by_stage(tmp_path)

    answers = 93_750 * 16
    assert answers == 1_500_000  # §3.1
    assert stages["distill"].tokens == answers * 10_000
    assert stages["sft"].tokens == 4 * answers * 10_300
    assert stages["sample"].tokens == 16 * (88_000 + 18_000) / 0.5 * 10_000
    peak = 32 * 989e12 * 0.4
    hours = 6 * 8_190_735_360 * 4 * answers * 10_300 / peak / 3600 * 32
    assert stages["sft"].gpu_hours == pytest.approx(hours)
    todo = [s for s in stages.values() if s.seconds is not None]
    assert all(s.assumed for s in todo)
    assert {s for s in stages if stages[s].seconds is None} == {"base", "report"}


def test_a_file_of_ones_own_rates_takes_their_place(tmp_path):
    """YAML that extends the profile."""
    rates = {"generate_mfu": 0.1, "train_mfu": 0.35}
    own = tmp_path / "ours.yaml"
    own.write_text(yaml.safe_dump({"extends": "paper", "topology": {"assume": rates}}))

    paper = by_stage(tmp_path)
    page = plan(load_profile(str(own)), Store(tmp_path))
    ours, taken = {s.stage: s for s in page}, [name for name, _ in assumptions(page)]

    assert ours["sft"].seconds == pytest.approx((paper["sft"].seconds or 0) * 0.4 / 0.35)
    assert ours["rate"].seconds == pytest.approx((paper["rate"].seconds or 0) / 2)
    assert {"train_mfu = 0.35", "generate_mfu = 0.1"} <= set(taken)
    by_option = by_stage(tmp_path, "topology.assume.train_mfu=0.35")
    assert by_option["sft"].seconds == ours["sft"].seconds


def test_rates_measured_on_the_cluster_take_the_place_of_assumptions(tmp_path):
    """An earlier run at 8B, shorter: the plan of the whole one then rests on its rates."""
    paper = load_profile("paper")
    measured = (
        ("base", paper.base, (), 1, {}),
        ("sft", paper.sft, (("base", "k"),), 3600, {"steps": 50}),
        ("rl_math", paper.rl_math, (("sft", "k"),), 7200, {"rollout_steps": 20}),
        ("rate", paper.rate, (), 1000,
         {"samples": 100, "tokens": 8e5, "prompt_tokens": 2e4, "tokens_per_second": 2500}),
    )  # fmt: skip
    names = ("settings", "inputs", "seconds", "metrics")
    curve = {"completions/mean_length": [9000.0]}
    for stage, *told in measured:
        about = dict(zip(names, told, strict=True))
        publish(tmp_path, stage, **about, hardware="8 × NVIDIA H100 80GB HBM3", curve=curve)

    stages = by_stage(tmp_path)

    rollouts = 100 * 128 * 8
    assert stages["rl_math"].tokens == rollouts * 9000
    per_gpu = 20 * 128 * 8 / 7200 / 8
    assert stages["rl_math"].seconds == pytest.approx(rollouts / (per_gpu * 16))
    assert stages["rate"].seconds == pytest.approx(93_750 * 4 * 8000 / 2500)
    assert "generate_mfu" not in stages["rate"].assumptions


def test_what_cannot_run_is_said_in_the_plan_and_refused_by_a_run(tmp_path):
    settings = load_profile("paper", ["topology.rl_gpus=0"])
    stages = plan(settings, Store(tmp_path))

    (problem,) = stages.problems
    assert problem.startswith("rl_math: 16 prompts a mini-batch cannot be shared by 32 GPUs")
    assert str(literal(problem.partition(": ")[2])) in summary(stages)
    with active(Run(store=Store(tmp_path))), pytest.raises(DoesNotFit, match="rl_math"):
        run_stages(settings)
    assert not list(tmp_path.iterdir())


def of(*stages: PlannedStage) -> Plan:
    return Plan(stages, Topology())


def test_the_sum_adds_up_what_is_left_marks_assumptions_and_names_what_was_never_measured():
    reused = PlannedStage("a", "reuse", "", seconds=50.0)
    forced = PlannedStage("b", "compute", "forced", seconds=100.0)
    unknown = PlannedStage("c", "compute", "never computed")
    assumed = PlannedStage("d", "compute", "", seconds=3600.0, tokens=2e9, gpu_hours=8.0,
                           bytes=3e9, cost=20.0, assumed=True)  # fmt: skip

    assert summary(of(reused, forced, unknown)) == (
        "1 to reuse (50 s spent before), 2 to compute; about 1 min 40 s; "
        "never measured here and not counted: c"
    )
    assert summary(of(reused)) == "1 to reuse (50 s spent before): a run takes seconds"
    assert summary(of(assumed)) == (
        "1 to compute; ≈1 h 00 min, 2.0 G tokens, 8 GPU-hours, 3.0 GB of disk, cost 20"
    )
    (row,) = rows([assumed])
    assert (row["time"], row["GPU-hours"]) == ("≈1 h 00 min", "≈8")
    assert list(rows([reused])[0]) == ["stage", "action", "why", "time"]  # what is known
    assert [row["time"] for row in rows([reused, forced])] == ["(50 s)", "1 min 40 s"]
    assert [module.amount(v) for v in (0.021, 7.46, 12_345.6)] == ["0.021", "7.5", "12,346"]


@pytest.mark.parametrize("width", [80, 200])
def test_the_page_keeps_to_the_terminal_and_loses_nothing(tmp_path, width):
    stages = plan(load_profile("paper", ["topology.gpu_hour_price=2"]), Store(tmp_path))
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_plan(stages, console)
    page = console.file.getvalue()  # type: ignore[attr-defined]

    assert max(map(len, page.splitlines())) <= width
    for row in rows(stages):
        line = next(x for x in page.splitlines() if row["stage"] in x and row["time"] in x)
        assert row["GPU-hours"] in line
        assert row["cost"] in line
    assert "…" not in page
    joined = " ".join(page.split())
    for name, _ in assumptions(stages):
        assert name in joined


def test_the_critical_path_is_the_slowest_way_and_gpus_are_taken_in_turns():
    def line(stage, seconds, *inputs, action="compute", gpu_hours=None):
        about = {"action": action, "gpu_hours": gpu_hours, "inputs": inputs}
        return PlannedStage(stage, seconds=seconds, **about)

    data = [line("collect", 100.0, action="reuse"), line("a", 5.0, "collect"), line("b", 7.0)]
    assert critical_path([*data, line("report", 1.0, "a", "b")]) == (8.0, ["b", "report"])
    on_gpus = [line("sft", 10.0, "a", gpu_hours=1.0), line("evaluate_base", 4.0, gpu_hours=1.0)]
    assert critical_path([*data, *on_gpus]) == (19.0, ["a", "sft", "evaluate_base"])
