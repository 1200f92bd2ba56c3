"""The diagnostic says which tokens leave the clip range, and nothing where none was counted."""

import json

import numpy as np
import pytest

from eval.figures import stage_figures
from eval.off_policy import CELLS, JOURNAL, SHAPE, Counted, OffPolicy, bins, read_off_policy
from eval.off_policy_page import off_policy_arms, off_policy_blocks
from eval.page import Figures, Page, Table, as_cell
from eval.page_html import to_html


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
    assert [row[0] for row in middle] == bins()[1:-1]
    assert all(share == 0 for row in middle for share in row[1:])


def test_a_stage_that_counted_nothing_has_no_section(tmp_path):
    assert off_policy_blocks([], "rl") == []
    assert off_policy_arms({"gppo": [[], []]}) == []
    assert read_off_policy(tmp_path) == []
    assert OffPolicy.of_lists([0.0] * CELLS, [0.0] * CELLS).clipped_gradient == 0


def test_the_section_of_a_stage_draws_and_tabulates_every_entropy():
    about, figures, outside, by_entropy = off_policy_blocks(ROWS, "rl_math_off_policy")
    assert isinstance(figures, Figures)
    assert isinstance(by_entropy, Table)
    assert len({f.name for f in figures.figures}) == 3
    assert [row[0] for row in by_entropy.rows] == bins()
    assert isinstance(outside, Table)
    assert [row[0] for row in outside.rows] == bins()
    page = Page("t", "s", "l", (about, figures, outside, by_entropy))
    assert "100.00" in to_html(page)  # every token of the highest entropy is cut off


def test_arms_stand_side_by_side_over_all_their_seeds():
    blocks = off_policy_arms({"gppo": [ROWS, ROWS], "cispo": [ROWS], "lost": [[]]})
    (arms, *_) = [b for b in blocks if isinstance(b, Table)]
    # updates 0 and 1 of two steps: 2 of 38 tokens, a share that more seeds do not change
    assert [as_cell(row[0]).text for row in arms.rows] == ["gppo", "cispo"]
    assert {as_cell(row[3]).text for row in arms.rows} == {f"{100 * 2 / 38:.2f}"}
    captions = [b.caption for b in blocks if isinstance(b, Table)][1:]
    assert captions == ["gppo", "gppo", "cispo", "cispo"]  # outside, and what is clipped


def test_a_stage_folder_with_counts_gets_its_pictures(tmp_path):
    path = tmp_path / JOURNAL
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
