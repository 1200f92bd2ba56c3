"""Pictures of a stage, and the diagnostic of tokens that leave the clip range."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tasks.report.report import report_page
from tasks.report.training import off_policy_arms, stage_figures
from tasks.store.store import Artifact
from tests.tasks.pages_by_hand import table_rows
from training.layout import OFF_POLICY
from training.rl.off_policy_counts import (
    SHAPE,
    Counted,
    OffPolicy,
    bins,
    read_off_policy,
)


def table(inside: float, cut: float) -> OffPolicy:
    """So many tokens of each sign inside the range, and so many that clipping cuts off; the first
    at the lowest entropy, the others at the highest. A cut token carries four times the gradient.
    """
    tokens, gradient = np.zeros(SHAPE), np.zeros(SHAPE)
    tokens[:, 1, 0] = inside
    tokens[0, 0, -1] = tokens[1, 2, -1] = cut
    gradient[:] = tokens
    gradient[0, 0, -1] *= 4
    gradient[1, 2, -1] *= 4
    return OffPolicy(tokens, gradient)


ROWS = [Counted(step, update, table(9, update)) for step in (1, 2) for update in (0, 1)]


def test_shares_are_of_tokens_and_of_gradient():
    counts = table(9, 1)
    assert counts.clipped == pytest.approx(2 / 20)
    assert counts.clipped_gradient == pytest.approx(8 / 26)
    assert counts.outside("negative") == counts.outside("positive") == pytest.approx(1 / 10)
    assert counts.clipped_at_high_entropy == 1
    low, *_, high = counts.by_entropy()
    assert low == (bins()[0], 0.9, 0.0, pytest.approx(18 / 26), 0.0)
    assert high == (bins()[-1], 0.1, 1.0, pytest.approx(8 / 26), 1.0)


def test_tokens_outside_the_range_are_told_apart_by_sign_and_entropy():
    """Two of ten are at the lowest entropy with Ã > 0, one of them below the range, which is not
    clipped; four of eight with Ã < 0 at the highest lie outside it."""
    tokens = np.zeros(SHAPE)
    tokens[1, 1, 0], tokens[1, 0, 0] = 1, 1
    tokens[0, 0, -1], tokens[0, 1, -1], tokens[0, 2, -1] = 3, 4, 1
    low, *middle, high = OffPolicy(tokens, tokens).outside_by_entropy()
    assert low == (bins()[0], 0.2, 0.5, 0.0, 0.0)
    assert high == (bins()[-1], 0.0, 0.0, 0.8, 0.5)
    assert all(share == 0 for row in middle for share in row[1:])


def test_arms_stand_side_by_side_over_all_their_seeds():
    text, figures = off_policy_arms({"gppo": [ROWS, ROWS], "cispo": [ROWS], "lost": [[]]})
    assert [f.name for f in figures] == ["off_policy_clipped"]
    arms = table_rows(text.split("_Over all")[0], "Off-policy tokens")
    assert list(arms) == ["arm", "gppo", "cispo"]
    # updates 0 and 1 of two steps: 2 of 38 tokens, a share that more seeds do not change
    assert {row[2] for name, row in arms.items() if name != "arm"} == {f"{100 * 2 / 38:.2f}"}
    for name in bins():  # by entropy, for each arm: outside, and what is clipped
        assert text.count(f"\n| {name} |") == 2 * 2
    assert "100.00" in text  # every token of the highest entropy is cut off


def test_a_stage_folder_with_counts_gets_its_pictures(tmp_path):
    path = tmp_path / OFF_POLICY
    path.parent.mkdir()
    rows = [
        {"step": r.step, "update": r.update, "tokens": r.counts.tokens.flatten().tolist(),
         "gradient": r.counts.gradient.flatten().tolist()}
        for r in ROWS
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {n for n in stage_figures("rl_math", tmp_path) if n.startswith("off_policy")} == {
        "off_policy_outside", "off_policy_clipped", "off_policy_drift",
    }  # fmt: skip
    assert [(r.step, r.update, r.counts.clipped) for r in read_off_policy(tmp_path)] == [
        (r.step, r.update, r.counts.clipped) for r in ROWS
    ]
    (stage,) = [s for s in training_text(tmp_path).split("### ") if s.startswith("RL, math")]
    assert "<summary>RL, math: tokens outside the clip range</summary>" in stage


def training_text(folder):
    return report_page([Artifact.of_folder(folder, "rl_math")], "tiny").body


def test_rl_has_curves_of_entropy_and_clipping_and_histograms_of_lengths_and_rewards(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    metrics = {"entropy": 1.0, "clip/high": 0.1, "clip/low": 0.2, "reward/mean": 0.5,
               "grad_norm": 1.0}  # fmt: skip
    lines = [{"step": t, "time": 0.0, "metrics": metrics} for t in (1, 2)]
    (logs / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    counts = {"answer_tokens": [1.0, 3.0], "reward": [2.0, 2.0]}
    (logs / "histograms.jsonl").write_text(2 * (json.dumps(counts) + "\n"))
    ranges = {"answer_tokens": [0, 192], "reward": [-2, 2]}
    (logs / "histogram_ranges.json").write_text(json.dumps(ranges))
    found = stage_figures("rl_math", tmp_path)
    assert set(found) == {
        "entropy", "share_of_tokens_clipped", "reward",
        "histogram_answer_tokens", "histogram_reward",
    }  # fmt: skip
    text = "".join(ElementTree.fromstring(found["histogram_answer_tokens"]).itertext())
    assert "step 1" in text
    assert "step 2" in text
    assert "70%" in text  # 3 of 4 answers are in the upper bin
    assert "90%" not in text
    assert "plots/rl_math_grad_norm.svg" not in training_text(tmp_path)
    assert "plots/rl_math_gradient_norm.svg" in training_text(tmp_path)


def test_a_folder_without_curves_or_counts_has_no_pictures(tmp_path):
    assert stage_figures("dedup", tmp_path) == {}
    assert off_policy_arms({"gppo": [[], []]}) == ("", [])
