"""A claim holds as far as all of its contrasts do, and of what they test."""

import pytest

from configs.settings.ablation import Ablation, ablations, load_ablation
from tasks.ablation.outcome import Finding, Outcome
from tasks.ablation.pages import (
    NOT_RUN,
    Cost,
    Experiment,
    claim_rows,
    compared,
    results_page,
    verdict_of,
)

SPEC = load_ablation("table6_lm_weight")
DECIDES, OTHER = SPEC.scale("tiny").benchmarks
VERDICT = 4


def finding(
    than: str,
    points: float,
    benchmark: str = DECIDES,
    half: float = 1.0,
    better: str = "α=0.1",
    measure: str = "score",
) -> Finding:
    low, high = points - half, points + half
    verdict = "confirmed" if low > 0 else "reversed" if high < 0 else "not seen"
    return Finding(better=better, than=than, benchmark=benchmark, points=points, low=low, high=high,
                   size=1.0, wins=5, seeds=5, verdict=verdict, measure=measure)  # fmt: skip


def outcome(*findings: Finding) -> Outcome:
    return Outcome(name=SPEC.name, profile="tiny", seeds=5, findings=findings, scores=())


def told(*findings: Finding) -> tuple[str, ...]:
    """The one row of the claim, as texts."""
    (row,) = claim_rows(compared(SPEC, outcome(*findings), "tiny"))
    return row


def test_a_claim_is_confirmed_only_if_every_contrast_is():
    better = [finding(than, 5.0) for than in ("α=0", "α=0.05", "α=0.2")]
    assert told(*better)[VERDICT] == "confirmed"
    assert told(*better[:2], finding("α=0.2", 0.5))[VERDICT] == "2 confirmed, 1 not seen"
    assert told(*better[:2], finding("α=0.2", -5.0))[VERDICT] == "2 confirmed, 1 reversed"
    assert told(*better[:2])[VERDICT] == f"2 confirmed, 1 {NOT_RUN}"
    assert told()[VERDICT] == NOT_RUN


def test_the_benchmark_that_decides_is_the_first():
    others = [finding(than, 5.0, benchmark=OTHER) for than in ("α=0", "α=0.05", "α=0.2")]
    mine = [finding(than, 0.0) for than in ("α=0", "α=0.05", "α=0.2")]
    assert told(*others, *mine)[VERDICT] == "not seen"
    assert verdict_of([]) == NOT_RUN


def test_a_claim_names_each_contrast_with_its_interval():
    shows, claim, paper, ours, *_ = told(finding("α=0", 5.0), finding("α=0.05", -2.5, half=0.5))
    assert (shows, claim) == ("Table 6", SPEC.claim)
    assert "α=0.1 over α=0 AIME 2024 +1.2, AIME 2025 +2.4" in paper
    assert "α=0.1 over α=0 +5.0 (+4.0 to +6.0)" in ours
    assert "α=0.1 over α=0.05 -2.5 (-3.0 to -2.0)" in ours


def test_the_papers_analysis_makes_eight_claims():
    specs = [load_ablation(name) for name in ablations()]
    rows = claim_rows([row for spec in specs for row in compared(spec, None, "tiny")])
    assert len(rows) == 8
    assert "Table 4 and Table 5" in [row[0] for row in rows]


def test_a_contrast_outside_the_claim_is_shown_and_does_not_count():
    spec = load_ablation("fig2_clipping")
    found = (
        finding("clip-higher", 5.0, better="gppo"),
        finding("cispo", 5.0, better="gppo"),
        finding("cispo", 5.0, better="gppo", measure="steadiness"),
        finding("clip-higher", -5.0, better="cispo"),
    )
    seen = Outcome(name=spec.name, profile="tiny", seeds=5, findings=found, scores=())
    rows = compared(spec, seen, "tiny")
    (row,) = claim_rows(rows)
    assert row[VERDICT] == "confirmed"
    assert "cispo over clip-higher" not in str(row[3])
    assert [(r.contrast.part_of_claim, r.found and r.found.verdict) for r in rows] == [
        (True, "confirmed"), (True, "confirmed"), (True, "confirmed"), (False, "reversed")
    ]  # fmt: skip
    page = results_page("tiny", [Experiment(spec, seen)], Cost(1, 1.0, 1.0)).body
    assert "| lower, outside the claim |" in page


def test_a_score_says_nothing_of_steadiness():
    """Figure 5 claims a steady way; which arm ends higher decides nothing about it."""
    spec = load_ablation("fig5_zero_advantage")
    ends = finding("all-groups", 5.0, better="filtered")
    steady = finding("all-groups", -2.0, better="filtered", measure="steadiness")

    def verdict(*found: Finding) -> object:
        seen = Outcome(name=spec.name, profile="tiny", seeds=5, findings=found, scores=())
        (row,) = claim_rows(compared(spec, seen, "tiny"))
        return row[VERDICT]

    assert verdict(ends) == NOT_RUN
    assert verdict(ends, steady) == "reversed"


def test_a_claim_needs_a_contrast():
    none = [{**c.model_dump(), "part_of_claim": False} for c in SPEC.contrasts]
    with pytest.raises(ValueError, match="no contrast is part of the claim"):
        Ablation.model_validate(SPEC.model_dump() | {"contrasts": none})


def test_the_sources_of_the_claim_are_the_one_or_two_best_against_many():
    counted = [
        (spec.shows, row.contrast.better, row.other)
        for spec in map(load_ablation, ("table4_math_sources", "table5_code_sources"))
        for row in compared(spec, None, "tiny")
        if row.contrast.part_of_claim
    ]
    assert counted == [
        ("Table 4", "top1", "top4"), ("Table 4", "top2", "top4"), ("Table 5", "top2", "top4")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("fig2_clipping", "gradient norms"),
        ("fig3_reward", "the level of rewards and their variance"),
        ("fig4_test_filter", "how steady training is"),
    ],
)
def test_what_the_last_score_cannot_decide_stands_beside_the_verdict(name, part):
    (row,) = claim_rows(compared(load_ablation(name), None, "tiny"))
    assert part in str(row[VERDICT + 1])


def test_arms_of_two_tables_in_one_row_are_told_apart():
    specs = map(load_ablation, ("table4_math_sources", "table5_code_sources"))
    (row,) = claim_rows([row for spec in specs for row in compared(spec, None, "tiny")])
    assert "Table 4: top2 over top4 AIME 2024 +0.4" in str(row[2])  # 37.71 and 37.29
    assert "Table 5: top2 over top4 LCB v5 +0.3" in str(row[2])  # 27.24 and 26.97
