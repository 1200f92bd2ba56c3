"""An experiment's page and the page of all: what was seen, how sure it is, what is no evidence."""

import json

import pytest

from configs.settings.ablation import Ablation, ablations, load_ablation
from tasks.ablation.effects import Learning, Point
from tasks.ablation.outcome import Cell, Finding, Outcome, outcome_of, read_cell
from tasks.ablation.pages import (
    NOT_RUN,
    Cost,
    Experiment,
    ablation_page,
    claim_rows,
    compared,
    results_page,
)
from tests.eval.evaluations_by_hand import evaluation, result

SPEC = load_ablation("table6_lm_weight")
BENCHMARKS = SPEC.scale("tiny").benchmarks
OTHERS = ("α=0", "α=0.05", "α=0.2")
VERDICT = 4


def cell(arm: str, seed: int, score: float) -> Cell:
    means = {f"p{i}": score + 0.01 * seed for i in range(20)}
    curve = {step: score * step for step in (1, 2, 3)}
    return Cell(arm, seed, dict.fromkeys(BENCHMARKS, means), {"reward/mean": curve})


def cells(best: float, seeds: int = 5) -> list[Cell]:
    levels = {**dict.fromkeys(OTHERS, 0.4), "α=0.1": best}
    return [cell(arm, seed, level) for arm, level in levels.items() for seed in range(seeds)]


@pytest.mark.parametrize(
    ("best", "verdict"), [(0.6, "confirmed"), (0.4, "not seen"), (0.2, "reversed")]
)
def test_each_contrast_gets_its_effect_and_verdict(best, verdict):
    found = outcome_of(SPEC, "tiny", cells(best)).findings
    assert [(f.than, f.benchmark) for f in found] == [(o, b) for o in OTHERS for b in BENCHMARKS]
    assert {f.verdict for f in found} == {verdict}
    assert found[0].points == pytest.approx(100 * (best - 0.4))


def test_an_arm_that_lacks_a_seed_or_a_score_is_compared_on_the_others():
    first, second = BENCHMARKS
    fewer = [c for c in cells(0.6) if not (c.arm == "α=0" and c.seed == 2)]
    fewer = [Cell(c.arm, c.seed, {first: c.scores[first]}, {}) if c.seed == 0 else c for c in fewer]
    found = outcome_of(SPEC, "tiny", fewer).findings
    assert {(f.than, f.benchmark): f.seeds for f in found} == {
        ("α=0", first): 4, ("α=0", second): 3, ("α=0.05", first): 5, ("α=0.05", second): 4,
        ("α=0.2", first): 5, ("α=0.2", second): 4,
    }  # fmt: skip


def test_the_page_names_scale_evidence_scores_and_the_papers_own_figures_apart():
    page = ablation_page(SPEC, "tiny", cells(0.6))
    text = page.markdown()
    for part in (
        "tiny profile, 5 seeds", "Weak evidence", "79.37", "Not comparable", "confirmed",
        "62.0",  # mean of 60, 61, 62, 63, 64
        "Test: 95 % interval over seeds and problems", "5 seeds an arm are asked for",
    ):  # fmt: skip
        assert part in text
    assert "Not tested" not in text
    assert "data:image/svg+xml;base64," in page.html()
    two = ablation_page(SPEC, "tiny", cells(0.6, seeds=2), commit="abc123+").markdown()
    assert "made at commit abc123+" in two
    assert "2 seeds give no interval" in two
    assert "| confirmed |" not in two


def test_a_cell_is_read_from_the_folders_of_its_stages(tmp_path):
    verdicts = {("a", 0): "AC", ("a", 1): "WA", ("a", 2): "IE", ("b", 0): "AC"}
    problems = [(name, "aime24", None) for name in ("a", "b")]
    evaluation(tmp_path, [result("aime24", 3)], problems, verdicts)
    (tmp_path / "logs").mkdir()
    line = {"step": 4, "time": 0.0, "metrics": {"entropy": 0.5}}
    (tmp_path / "logs/metrics.jsonl").write_text(json.dumps(line) + "\n")

    found = read_cell("α=0", 1, tmp_path, tmp_path)

    assert found.scores == {"aime24": {"a": 0.5, "b": 1.0}}  # the unscored sample is no zero
    assert found.score("aime24") == 0.75
    assert found.curves == {"entropy": {4: 0.5}}


def wavering(arm: str, seed: int, low: float) -> Cell:
    """Rises from 40 to 60 %, by way of `low`; both halves of the answers say so."""
    curve = {2: 0.4, 4: low, 6: 0.6}
    half = {step: Point(accuracy, 10_000) for step, accuracy in curve.items()}
    learned = {"countdown_test": Learning(curve, (half, half))}
    means = {"countdown_test": {f"p{i}": 0.6 for i in range(20)}}
    return Cell(arm, seed, means, {"accuracy/countdown_test": curve}, learned=learned)


def test_accuracy_over_training_is_drawn_and_steadiness_tested():
    spec = load_ablation("fig5_zero_advantage")
    mine = [
        wavering(arm, seed, low - 0.01 * seed * (arm == "all-groups"))
        for arm, low in (("filtered", 0.5), ("all-groups", 0.3))
        for seed in range(5)
    ]
    found = outcome_of(spec, "tiny", mine)
    effects = {f.measure: f for f in found.findings if f.benchmark == "countdown_test"}
    assert effects["steadiness"].points == pytest.approx(10 + 2)  # 10 to 14 against 0
    assert effects["steadiness"].verdict == "confirmed"
    assert effects["score"].verdict == "not seen"
    assert found.falls == pytest.approx({"filtered": 0, "all-groups": 12})
    assert found.learning["all-groups"] == pytest.approx({2: 40, 4: 28, 6: 60})
    assert type(found).model_validate_json(found.model_dump_json()) == found
    text = ablation_page(spec, "tiny", mine).markdown()
    assert "filtered steadier than all-groups" in text
    assert "plots/accuracy_countdown_test.svg" in text
    page = results_page("tiny", [Experiment(spec, found)], Cost(1, 1.0, 1.0)).body
    assert "| all-groups | 40.0 | 28.0 | 60.0 | 12.0 |" in page
    plain = [cell(arm.name, seed, 0.5) for arm in spec.arms for seed in range(5)]
    assert {f.measure for f in outcome_of(spec, "tiny", plain).findings} == {"score"}


def finding(than: str, points: float, benchmark: str = BENCHMARKS[0], half: float = 1.0,
            better: str = "α=0.1", measure: str = "score") -> Finding:  # fmt: skip
    low, high = points - half, points + half
    verdict = "confirmed" if low > 0 else "reversed" if high < 0 else "not seen"
    return Finding(better=better, than=than, benchmark=benchmark, points=points, low=low, high=high,
                   size=1.0, wins=5, seeds=5, verdict=verdict, measure=measure)  # fmt: skip


def told(*findings: Finding, spec: Ablation = SPEC) -> tuple[str, ...]:
    """The one row of the claim, as texts."""
    seen = Outcome(name=spec.name, profile="tiny", seeds=5, findings=findings, scores=())
    (row,) = claim_rows(compared(spec, seen, "tiny"))
    return row


def test_a_claim_is_confirmed_only_if_every_contrast_is_on_the_benchmark_that_decides():
    better = [finding(than, 5.0) for than in OTHERS]
    assert told(*better)[VERDICT] == "confirmed"
    assert told(*better[:2], finding("α=0.2", 0.5))[VERDICT] == "2 confirmed, 1 not seen"
    assert told(*better[:2], finding("α=0.2", -5.0))[VERDICT] == "2 confirmed, 1 reversed"
    assert told(*better[:2])[VERDICT] == f"2 confirmed, 1 {NOT_RUN}"
    elsewhere = [finding(than, 5.0, benchmark=BENCHMARKS[1]) for than in OTHERS]
    assert told(*elsewhere)[VERDICT] == NOT_RUN


def test_a_contrast_outside_the_claim_is_shown_and_does_not_count():
    spec = load_ablation("fig2_clipping")
    found = (
        finding("clip-higher", 5.0, better="gppo"),
        finding("cispo", 6.0, better="gppo"),
        finding("cispo", 5.0, better="gppo", measure="steadiness"),
        finding("clip-higher", -5.0, better="cispo"),
    )
    row = told(*found, spec=spec)
    assert row[VERDICT] == "confirmed"
    assert "gppo over clip-higher +5.0 (+4.0 to +6.0)" in row[3]
    assert "cispo over clip-higher" not in str(row[3])
    seen = Outcome(name=spec.name, profile="tiny", seeds=5, findings=found, scores=())
    page = results_page("tiny", [Experiment(spec, seen)], Cost(1, 1.0, 1.0)).body
    assert "| lower, outside the claim |" in page
    assert "Not tested: stable gradient norms and the speed of convergence" in page
    none = [{**c.model_dump(), "part_of_claim": False} for c in SPEC.contrasts]
    with pytest.raises(ValueError, match="no contrast is part of the claim"):
        Ablation.model_validate(SPEC.model_dump() | {"contrasts": none})


def test_a_score_says_nothing_of_steadiness():
    """Figure 5 claims a steady way; which arm ends higher decides nothing about it."""
    spec = load_ablation("fig5_zero_advantage")
    ends = finding("all-groups", 5.0, better="filtered")
    steady = finding("all-groups", -2.0, better="filtered", measure="steadiness")
    assert told(ends, spec=spec)[VERDICT] == NOT_RUN
    assert told(ends, steady, spec=spec)[VERDICT] == "reversed"


def test_the_papers_analysis_makes_eight_claims_that_name_what_they_do_not_test():
    specs = [load_ablation(name) for name in ablations()]
    rows = claim_rows([row for spec in specs for row in compared(spec, None, "tiny")])
    by_figure = {row[0]: row for row in rows}
    assert len(rows) == 8
    for shows, part in (("Figure 2", "gradient norms"), ("Figure 4", "how steady training is"),
                        ("Figure 3", "the level of rewards and their variance")):  # fmt: skip
        assert part in by_figure[shows][VERDICT + 1]
    papers = by_figure["Table 4 and Table 5"][2]  # the arms of both tables have the same names
    assert "Table 4: top2 over top4 AIME 2024 +0.4" in papers  # 37.71 and 37.29
    assert "Table 5: top2 over top4 LCB v5 +0.3" in papers  # 27.24 and 26.97
    counted = [
        (spec.shows, row.contrast.better, row.other)
        for spec in map(load_ablation, ("table4_math_sources", "table5_code_sources"))
        for row in compared(spec, None, "tiny")
        if row.contrast.part_of_claim
    ]  # the one or two best sources against many
    assert counted == [
        ("Table 4", "top1", "top4"), ("Table 4", "top2", "top4"), ("Table 5", "top2", "top4")
    ]  # fmt: skip
