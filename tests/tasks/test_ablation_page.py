"""An experiment's page says what was seen, how sure it is, and what it is no evidence for."""

import json

import pytest

from configs.settings.ablation import load_ablation
from tasks.ablation.outcome import Cell, effects_of, outcome_of, read_cell
from tasks.ablation.pages import Cost, Experiment, ablation_page, results_page
from tasks.report.learning import Learning, Point
from tests.eval.evaluations_by_hand import evaluation, result

SPEC = load_ablation("table6_lm_weight")
BENCHMARKS = SPEC.scale("tiny").benchmarks


def cell(arm: str, seed: int, score: float) -> Cell:
    means = {f"p{i}": score + 0.01 * seed for i in range(20)}
    curve = {step: score * step for step in (1, 2, 3)}
    return Cell(arm, seed, dict.fromkeys(BENCHMARKS, means), {"reward/mean": curve})


def cells(best: float, seeds: int = 5) -> list[Cell]:
    levels = {"α=0": 0.4, "α=0.05": 0.4, "α=0.1": best, "α=0.2": 0.4}
    return [cell(arm, seed, level) for arm, level in levels.items() for seed in range(seeds)]


@pytest.mark.parametrize(
    ("best", "verdict"), [(0.6, "confirmed"), (0.4, "not seen"), (0.2, "reversed")]
)
def test_each_claim_gets_its_effect_and_verdict(best, verdict):
    found = effects_of(SPEC, BENCHMARKS, cells(best))
    assert [(c.better, other, b) for c, other, b, _ in found] == [
        ("α=0.1", other, b) for other in ("α=0", "α=0.05", "α=0.2") for b in BENCHMARKS
    ]
    assert {e.verdict for *_, e in found} == {verdict}
    assert found[0][3].mean == pytest.approx(best - 0.4)


def test_the_page_names_scale_evidence_scores_and_the_papers_own_figures_apart():
    text = ablation_page(SPEC, "tiny", cells(0.6)).markdown()
    assert "tiny profile, 5 seeds" in text
    assert "Weak evidence" in text
    assert "62.0" in text  # mean of 60, 61, 62, 63, 64
    assert "79.37" in text
    assert "Not comparable" in text
    assert "confirmed" in text
    assert "Test: 95 % interval over seeds and problems" in text
    assert "5 seeds an arm are asked for" in text
    assert "Not tested" not in text
    assert "data:image/svg+xml;base64," in ablation_page(SPEC, "tiny", cells(0.6)).html()


def test_two_seeds_give_scores_and_no_verdict():
    text = ablation_page(SPEC, "tiny", cells(0.6, seeds=2)).markdown()
    assert "2 seeds give no interval" in text
    assert "confirmed" not in text.split("Scores")[0].split("Claims")[1].split("Arms are")[0]


def test_an_arm_that_lacks_a_seed_is_compared_on_the_others():
    fewer = [c for c in cells(0.6) if not (c.arm == "α=0" and c.seed == 2)]
    seeds = {other: e.seeds for _, other, _, e in effects_of(SPEC, BENCHMARKS, fewer)}
    assert seeds == {"α=0": 4, "α=0.05": 5, "α=0.2": 5}


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


def test_a_run_that_scored_nothing_of_a_benchmark_does_not_count_for_it():
    first, second = BENCHMARKS
    some = cells(0.6)
    lost = [
        Cell(c.arm, c.seed, {first: c.scores[first]}, c.curves) if c.seed == 0 else c for c in some
    ]
    seeds = {(b, e.seeds) for _, _, b, e in effects_of(SPEC, BENCHMARKS, lost)}
    assert seeds == {(first, 5), (second, 4)}
    assert ablation_page(SPEC, "tiny", lost).markdown().count("confirmed") >= len(seeds)


def test_the_page_says_what_is_not_tested_what_is_outside_the_claim_and_its_commit():
    spec = load_ablation("fig2_clipping")
    levels = {"gppo": 0.6, "clip-higher": 0.4, "cispo": 0.5}
    mine = [cell(arm, seed, level) for arm, level in levels.items() for seed in range(5)]
    text = ablation_page(spec, "tiny", mine, commit="abc123+").markdown()
    assert "Not tested: stable gradient norms and the speed of convergence" in text
    assert text.count("higher, outside the claim") == len(spec.scale("tiny").benchmarks)
    assert "made at commit abc123+" in text


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
    effects = {c.measure: e for c, _, b, e in effects_of(spec, ["countdown_test"], mine)}
    assert effects["steadiness"].mean == pytest.approx(0.1 + 0.02)  # 0.1 to 0.14 against 0
    assert effects["steadiness"].verdict == "confirmed"
    assert effects["score"].verdict == "not seen"
    text = ablation_page(spec, "tiny", mine).markdown()
    assert "filtered steadier than all-groups" in text
    assert "plots/accuracy_countdown_test.svg" in text

    found = outcome_of(spec, "tiny", mine)
    assert found.falls == pytest.approx({"filtered": 0, "all-groups": 12})
    assert found.learning["all-groups"] == pytest.approx({2: 40, 4: 28, 6: 60})
    again = type(found).model_validate_json(found.model_dump_json())
    assert again == found
    page = results_page("tiny", [Experiment(spec, found)], Cost(1, 1.0, 1.0)).body
    assert "| all-groups | 40.0 | 28.0 | 60.0 | 12.0 |" in page


def test_without_kept_models_nothing_is_said_of_steadiness():
    spec = load_ablation("fig5_zero_advantage")
    mine = [cell(arm.name, seed, 0.5) for arm in spec.arms for seed in range(5)]
    assert {c.measure for c, *_ in effects_of(spec, BENCHMARKS, mine)} == {"score"}
    assert outcome_of(spec, "tiny", mine).learning == {}
