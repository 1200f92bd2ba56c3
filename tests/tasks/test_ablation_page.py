"""An experiment's page and the page of all: what was seen, how sure it is, what is no evidence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from klear.configs.ablation import Ablation, ablations, load_ablation
from klear.tasks.ablation.ablate import (
    NO_INTERVAL,
    RESULTS,
    Cell,
    ExperimentOutcome,
    Finding,
    ablate,
    ablation_page,
    compared,
    outcome_of,
    read_cell,
)
from klear.tasks.ablation.effects import Half, detectable
from klear.tasks.ablation.results import (
    Finished,
    best,
    claim_rows,
    finished_in,
    identity_of,
    read_finished,
    results_page,
    results_plot,
    write_results,
)
from klear.tasks.report.plots import VERDICT_COLOURS
from klear.tasks.store.store import Store
from klear.training.launch.result_files import OFF_POLICY, MetricsFile, StepLines
from klear.training.rl.off_policy_counts import CELLS
from tests.eval.evaluations_by_hand import evaluation, result

RESULTS_FOLDER = Path(__file__).parents[2] / "configs/ablation_results"
BENCHMARKS = ("countdown_test", "by_example_test")


def with_two_benchmarks() -> Ablation:
    """Table 6 as it was before its registration."""
    table6 = load_ablation("table6_lm_weight").model_dump(exclude={"seeds", "starts", "registered"})
    table6["scales"]["tiny"]["benchmarks"] = BENCHMARKS
    return Ablation.model_validate(table6)


SPEC = with_two_benchmarks()
OTHERS = ("α=0", "α=0.05", "α=0.2")
VERDICT = 6


def cell(arm: str, seed: int, score: float) -> Cell:
    means = {f"p{i}": score + 0.01 * seed for i in range(20)}
    curve = {step: score * step for step in (1, 2, 3)}
    return Cell(arm, seed, dict.fromkeys(BENCHMARKS, means), {"reward/mean": curve})


def cells(score: float, seeds: int = 5) -> list[Cell]:
    levels = {**dict.fromkeys(OTHERS, 0.4), "α=0.1": score}
    return [cell(arm, seed, level) for arm, level in levels.items() for seed in range(seeds)]


def page_of(spec: Ablation, cells: list[Cell]) -> str:
    return ablation_page(spec, "tiny", cells, outcome_of(spec, "tiny", cells)).markdown()


@pytest.mark.parametrize(
    ("score", "verdict"), [(0.6, "confirmed"), (0.4, "not seen"), (0.2, "reversed")]
)
def test_each_contrast_gets_its_verdict_and_pages_say_which_control_a_method_does_not_beat(
    score, verdict
):
    spec, runs = SPEC.model_copy(update={"control": "α=0"}), cells(score)
    outcome = outcome_of(spec, "tiny", runs)
    findings = outcome.findings
    assert [(f.than, f.benchmark) for f in findings] == [(o, b) for o in OTHERS for b in BENCHMARKS]
    assert {f.verdict for f in findings} == {verdict}
    assert findings[0].points == pytest.approx(100 * (score - 0.4))
    every = results_page("tiny", [spec], [finished_with(spec, outcome)]).markdown()
    for text in (page_of(spec, runs), every):
        lines = [line for line in text.splitlines() if "does not beat its control α=0 on" in line]
        assert len(lines) == (0 if verdict == "confirmed" else len(BENCHMARKS))


def test_an_effect_says_of_how_many_problems_it_is_where_some_run_lacks_scores():
    spec, name, runs = SPEC, BENCHMARKS[0], cells(0.6)
    full = outcome_of(spec, "tiny", runs)
    assert {(f.problems, f.asked_problems) for f in full.findings} == {(20, 20)}
    only = {"p0": runs[0].scores[name]["p0"]}
    runs[0] = replace(runs[0], scores={**runs[0].scores, name: only})
    outcome = outcome_of(spec, "tiny", runs)
    assert (outcome.findings[0].problems, outcome.findings[0].asked_problems) == (1, 20)
    every = results_page("tiny", [spec], [finished_with(spec, outcome)]).markdown()
    for text in (page_of(spec, runs), every):
        assert "rests on 1 of 20 problems" in text
    assert "rests on" not in page_of(spec, cells(0.6))


def test_runs_that_do_not_differ_at_all_show_nothing_of_what_could_have_been_seen():
    zeros = dict.fromkeys(BENCHMARKS, dict.fromkeys(("p0", "p1"), 0.0))
    floor = [replace(c, scores=zeros) for c in cells(0.4)]
    outcome = outcome_of(SPEC, "tiny", floor)
    assert {(f.could_see, f.seeds_for(5)) for f in outcome.findings} == {(None, None)}
    every = results_page("tiny", [SPEC], [finished_with(SPEC, outcome)]).markdown()
    for text in (page_of(SPEC, floor), every):
        assert "±0.0" not in text


def test_an_arm_that_lacks_a_seed_or_a_score_is_compared_on_the_others():
    first, second = BENCHMARKS
    fewer = [c for c in cells(0.6) if not (c.arm == "α=0" and c.seed == 2)]
    fewer = [Cell(c.arm, c.seed, {first: c.scores[first]}, {}) if c.seed == 0 else c for c in fewer]
    findings = outcome_of(SPEC, "tiny", fewer).findings
    assert {(f.than, f.benchmark): f.seeds for f in findings} == {
        ("α=0", first): 4, ("α=0", second): 3, ("α=0.05", first): 5, ("α=0.05", second): 4,
        ("α=0.2", first): 5, ("α=0.2", second): 4,
    }  # fmt: skip


def test_the_page_names_scale_evidence_scores_and_the_papers_own_figures_apart():
    text, two = page_of(SPEC, cells(0.6)), page_of(SPEC, cells(0.6, seeds=2))
    for part in ("tiny profile, 5 seeds", "Weak evidence", "79.37", "62.0 (60.0 to 64.0)"):
        assert part in text
    assert "2 seeds give no interval" in two
    assert ("| confirmed |" in text, "| confirmed |" in two) == (True, False)
    assert not [part for part in ("does not beat", "Registered") if part in text]
    pilot = SPEC.model_copy(update={"contrasts": ()})
    text = page_of(pilot, cells(0.6))
    assert "decides nothing" in text
    assert "| α=0.1 | 62.0 (60.0 to 64.0) |" in text
    assert "the paper says" not in text
    assert claim_rows(compared(pilot, outcome_of(pilot, "tiny", cells(0.6)), "tiny"), "tiny") == []


def test_a_cell_is_read_from_the_folders_of_its_stages(tmp_path):
    verdicts = {("a", 0): "AC", ("a", 1): "WA", ("a", 2): "IE", ("b", 0): "AC"}
    evaluation(tmp_path, [result("aime24", 3)], [(i, "aime24", None) for i in "ab"], verdicts)
    MetricsFile(tmp_path).append(4, {"entropy": 0.5})
    counts = {"step": 1, "update": 0, "tokens": [1.0] * CELLS, "gradient": [1.0] * CELLS}
    StepLines(tmp_path / OFF_POLICY, after_step=0).write(counts)
    read = read_cell("α=0", 1, tmp_path, tmp_path)
    assert read.scores == {"aime24": {"a": 0.5, "b": 1.0}}  # the unscored sample is no zero
    assert read.curves == {"entropy": {4: 0.5}}
    assert "| all | 100.00 | 66.67 |" in page_of(SPEC, [read])


def wavering(arm: str, seed: int, low: float) -> Cell:
    """Rises from 40 to 60 %, by way of `low`; both halves of the answers say so."""
    curve = {2: 0.4, 4: low, 6: 0.6}
    learned = {step: (Half(value, 10_000), Half(value, 10_000)) for step, value in curve.items()}
    means, curves = {f"p{i}": 0.6 for i in range(20)}, {"accuracy/countdown_test": curve}
    return Cell(arm, seed, {"countdown_test": means}, curves, learned={"countdown_test": learned})


def test_accuracy_over_training_is_drawn_and_steadiness_tested():
    spec = load_ablation("fig5_zero_advantage")
    runs = [
        wavering(arm, seed, low - 0.01 * seed * (arm == "all-groups"))
        for arm, low in (("filtered", 0.5), ("all-groups", 0.3))
        for seed in range(5)
    ]
    outcome = outcome_of(spec, "tiny", runs)
    effects = {f.measure: f for f in outcome.findings if f.benchmark == "countdown_test"}
    assert effects["steadiness"].points == pytest.approx(10 + 2)  # 10 to 14 against 0
    assert effects["steadiness"].verdict == "confirmed"
    assert effects["score"].verdict == "not seen"
    assert outcome.arms["all-groups"].learning == pytest.approx({2: 40, 4: 28, 6: 60})
    assert ExperimentOutcome.model_validate_json(outcome.model_dump_json()) == outcome
    text = page_of(spec, runs)
    assert "filtered steadier than all-groups" in text
    assert "plots/accuracy_countdown_test.svg" in text
    assert "| all-groups | 40.0 | 28.0 | 60.0 | 12.0 |" in text
    plain = [cell(arm.name, seed, 0.5) for arm in spec.arms for seed in range(5)]
    assert {f.measure for f in outcome_of(spec, "tiny", plain).findings} == {"score"}


def finding(than: str, points: float, benchmark: str = BENCHMARKS[0], better: str = "α=0.1",
            measure: str = "score") -> Finding:  # fmt: skip
    return Finding(better=better, than=than, benchmark=benchmark, points=points, low=points - 1,
                   high=points + 1, wins=5, seeds=5, measure=measure)  # fmt: skip


def finished(spec: Ablation, *findings: Finding, seeds: int = 5, **more: Any) -> Finished:
    arms = outcome_of(spec, "tiny", []).arms
    return finished_with(spec, ExperimentOutcome(seeds=seeds, findings=findings, arms=arms), **more)


def finished_with(
    spec: Ablation, outcome: ExperimentOutcome, grader: int = 1, created: str = "2026-01-01"
) -> Finished:
    facts = {"experiment": identity_of(spec, "tiny"), "commit": "2cede768d7c0600f+"}
    return Finished(outcome=outcome, grader=grader, created=created, **facts)


def claim_row(*findings: Finding, spec: Ablation = SPEC) -> tuple[str, ...]:
    (row,) = claim_rows(compared(spec, finished(spec, *findings).outcome, "tiny"), "tiny")
    return row


BETTER = [finding(than, 5.0) for than in OTHERS]
GPPO = {
    "clip-higher": finding("clip-higher", 5.0, better="gppo"),
    "cispo": finding("cispo", 6.0, better="gppo"),
    "steadier": finding("cispo", 5.0, better="gppo", measure="steadiness"),
    "outside": finding("clip-higher", -5.0, better="cispo"),
}
ENDS = finding("all-groups", 5.0, better="filtered")
STEADY = finding("all-groups", -2.0, better="filtered", measure="steadiness")


@pytest.mark.parametrize(
    ("experiment", "findings", "verdict"),
    [
        ("table6_lm_weight", BETTER, "confirmed"),
        ("table6_lm_weight", [*BETTER[:2], finding("α=0.2", 0.5)], "2 confirmed, 1 not seen"),
        ("table6_lm_weight", [*BETTER[:2], finding("α=0.2", -5.0)], "2 confirmed, 1 reversed"),
        ("table6_lm_weight", BETTER[:2], f"2 confirmed, 1 {NO_INTERVAL}"),
        # on another benchmark than the one that decides
        ("table6_lm_weight", [finding(than, 5.0, BENCHMARKS[1]) for than in OTHERS], NO_INTERVAL),
        ("fig2_clipping", [*GPPO.values()], "confirmed"),
        # Figure 5 claims a steady way; which arm ends higher decides nothing about it
        ("fig5_zero_advantage", [ENDS], NO_INTERVAL),
        ("fig5_zero_advantage", [ENDS, STEADY], "reversed"),
    ],
)
def test_a_claim_is_confirmed_if_every_contrast_of_it_is(experiment, findings, verdict):
    assert claim_row(*findings, spec=load_ablation(experiment))[VERDICT] == verdict


def test_a_contrast_outside_the_claim_is_shown_and_does_not_count():
    spec = load_ablation("fig2_clipping")
    page = results_page("tiny", [spec], [finished(spec, *GPPO.values())]).body
    assert "| lower, outside the claim |" in page
    assert "cispo over clip-higher" not in claim_row(*GPPO.values(), spec=spec)[3]


def published(store: Store, key: str, seeds: int, created: str = "2026-01-01",
              spec: Ablation = SPEC, version: int = ablate.version) -> None:  # fmt: skip
    """A result as the experiment's last stage would publish it."""
    work = store.work(SPEC.stage, key)
    work.mkdir(parents=True)
    (work / RESULTS).write_text(outcome_of(SPEC, "tiny", cells(0.6, seeds)).model_dump_json())
    settings = {"ablation": spec.model_dump(mode="json"), "profile": "tiny"}
    store.publish(work, stage=SPEC.stage, version=version, key=key, settings=settings,
                  seconds=1.0, pipeline_run="r", created=created)  # fmt: skip


def test_a_result_of_other_rules_or_of_old_settings_or_damaged_does_not_count(tmp_path):
    store = Store(tmp_path)
    published(store, "old", 9, version=ablate.version - 1)
    for key in ("foreign", "a", "b", "c"):
        published(store, key, 5)
    folder = store.root / SPEC.stage
    manifest = json.loads((folder / "foreign" / "manifest.json").read_text())
    manifest["settings"]["ablation"]["a_setting_of_old"] = 1
    (folder / "foreign" / "manifest.json").write_text(json.dumps(manifest))
    (folder / "b" / "manifest.json").write_text("{")
    (folder / "c" / RESULTS).unlink()
    (result,) = finished_in(store, SPEC, "tiny")
    assert result.outcome.seeds == 5
    assert finished_in(store, SPEC, "paper") == []


def test_a_result_counts_only_for_the_experiment_that_it_answers(tmp_path):
    """Another setting, direction, start or first seed is another question; another sentence of the
    paper, another choice of what the claim rests on, or more seeds are not."""
    store = Store(tmp_path)
    published(store, "a", 5)
    contrasts = tuple(c.model_copy(update={"says": "…"}) for c in SPEC.contrasts)
    extra = tuple(c.model_copy(update={"part_of_claim": False}) for c in contrasts[1:])
    retold = {"contrasts": (contrasts[0], *extra), "claim": "…", "untested": "…"}
    turned = tuple(
        c.model_copy(update={"better": c.than[0], "than": (c.better,)}) for c in contrasts
    )
    scale = SPEC.scale("tiny").model_copy(update={"set": {"rl_math.steps": 3}})
    for change, counts in (
        (retold, 1),
        ({"seeds": 9}, 1),
        ({"contrasts": turned}, 0),
        ({"scales": {"tiny": scale}}, 0),
        ({"starts": 4}, 0),
        ({"first_seed": 1000}, 0),
    ):
        assert len(finished_in(store, SPEC.model_copy(update=change), "tiny")) == counts


def test_of_each_question_the_result_with_most_seeds_stays_then_the_newest_judge_and_date():
    many, few = finished(SPEC, seeds=5), finished(SPEC, seeds=3, created="2026-01-09")
    later, judged = finished(SPEC, created="2026-01-02"), finished(SPEC, grader=2)
    other = finished(load_ablation("fig3_reward"), seeds=1)
    assert best([many, few]) == [many]
    assert best([later, other, many, few]) == [other, later]
    assert best([judged, later]) == [judged]


def test_results_of_another_store_stay_on_the_page(tmp_path):
    elsewhere, here, page = Store(tmp_path / "there"), Store(tmp_path / "here"), tmp_path / "R.md"
    published(elsewhere, "a", 5)
    assert write_results(elsewhere, page, "tiny", [SPEC]) == 1
    published(here, "b", 3, created="2026-01-02")
    assert write_results(here, page, "tiny", [SPEC]) == 1
    assert [f.outcome.seeds for f in read_finished(tmp_path / "R.jsonl")] == [5]
    assert "--seeds 5. Run on 2026-01-01" in page.read_text()


def test_the_committed_page_is_made_of_the_lines_beside_it_and_has_each_contrast_in_its_picture():
    results = read_finished(RESULTS_FOLDER / "RESULTS.jsonl")
    assert best(results) == results
    specs = [load_ablation(name) for name in ablations()]
    assert (
        results_page("tiny", specs, results).markdown()
        == (RESULTS_FOLDER / "RESULTS.md").read_text()
    )
    picture = results_plot("tiny", specs, results)
    assert picture == (RESULTS_FOLDER / "RESULTS.svg").read_text()
    experiments = [f.experiment for f in results]
    done = [spec for spec in specs if identity_of(spec, "tiny") in experiments]
    assert len(done) > 10
    for contrast in (c for spec in done for c in spec.contrasts if c.part_of_claim):
        for other in contrast.than:
            assert f">{contrast.against(other)} · " in picture
    confirmed, reversed_ = (picture.count(VERDICT_COLOURS[v]) for v in ("confirmed", "reversed"))
    assert confirmed > reversed_ > 0


def test_a_claim_has_the_half_width_the_seeds_and_what_they_could_have_seen():
    *_, ours, seeds, could_see, _ = claim_row(*BETTER)
    half, sd = 1.0, np.sqrt(5) / stats.t.ppf(0.975, 4)  # by which Student's interval is ± 1
    assert (ours, seeds) == (f"+5.0 ± {half:.1f}", "5")
    assert could_see == f"±{detectable(sd, 5):.1f}"


def test_what_was_registered_and_which_starts_are_shared_stand_on_both_pages():
    seeds = "16, for 5 points at the pilot's SD of 7"
    registered = {"metric": "avg@4", "test": "paired t", "seeds": seeds}
    spec = Ablation.model_validate(SPEC.model_dump() | {"starts": 4, "registered": registered})
    runs = cells(0.6)
    result = finished_with(spec, outcome_of(spec, "tiny", runs))
    for text in (page_of(spec, runs), results_page("tiny", [spec], [result]).markdown()):
        assert f"Metric: avg@4. Test: paired t. Seeds: {seeds}" in text
        assert "All arms share 4 SFT checkpoints" in text
