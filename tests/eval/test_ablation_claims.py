"""A claim holds as far as all of its contrasts do."""

from configs.ablation import ablations, load_ablation
from eval.ablation_claims import NOT_RUN, claim_table, compared, verdict_of
from eval.ablation_outcome import Finding, Outcome

SPEC = load_ablation("table6_lm_weight")
DECIDES, OTHER = SPEC.scale("tiny").benchmarks


def finding(than: str, points: float, benchmark: str = DECIDES, half: float = 1.0) -> Finding:
    low, high = points - half, points + half
    verdict = "confirmed" if low > 0 else "reversed" if high < 0 else "not seen"
    return Finding(better="α=0.1", than=than, benchmark=benchmark, points=points, low=low,
                   high=high, size=1.0, wins=5, seeds=5, verdict=verdict)  # fmt: skip


def outcome(*findings: Finding) -> Outcome:
    return Outcome(name=SPEC.name, profile="tiny", seeds=5, findings=findings, scores=())


def told(*findings: Finding) -> tuple[str, ...]:
    """The one row of the claim, as texts."""
    (row,) = claim_table(compared(SPEC, outcome(*findings), "tiny")).rows
    return tuple(cell if isinstance(cell, str) else cell.text for cell in row)


def test_a_claim_is_confirmed_only_if_every_contrast_is():
    better = [finding(than, 5.0) for than in ("α=0", "α=0.05", "α=0.2")]
    assert told(*better)[-1] == "confirmed"
    assert told(*better[:2], finding("α=0.2", 0.5))[-1] == "2 confirmed, 1 not seen"
    assert told(*better[:2], finding("α=0.2", -5.0))[-1] == "2 confirmed, 1 reversed"
    assert told(*better[:2])[-1] == f"2 confirmed, 1 {NOT_RUN}"
    assert told()[-1] == NOT_RUN


def test_the_benchmark_that_decides_is_the_first():
    others = [finding(than, 5.0, benchmark=OTHER) for than in ("α=0", "α=0.05", "α=0.2")]
    mine = [finding(than, 0.0) for than in ("α=0", "α=0.05", "α=0.2")]
    assert told(*others, *mine)[-1] == "not seen"
    assert verdict_of([]) == NOT_RUN


def test_a_claim_names_each_contrast_with_its_interval():
    shows, claim, paper, ours, _ = told(finding("α=0", 5.0), finding("α=0.05", -2.5, half=0.5))
    assert (shows, claim) == ("Table 6", SPEC.claim)
    assert "α=0.1 over α=0 AIME 2024 +1.2, AIME 2025 +2.4" in paper
    assert "α=0.1 over α=0 +5.0 (+4.0 to +6.0)" in ours
    assert "α=0.1 over α=0.05 -2.5 (-3.0 to -2.0)" in ours


def test_the_papers_analysis_makes_eight_claims():
    specs = [load_ablation(name) for name in ablations()]
    rows = claim_table([row for spec in specs for row in compared(spec, None, "tiny")]).rows
    assert len(rows) == 8
    assert "Table 4 and Table 5" in [row[0] for row in rows]
