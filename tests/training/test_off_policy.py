"""What leaves the clip range is counted by sign, side and entropy, with the gradient it carries."""

import json
import math
from functools import partial
from typing import Any

import pytest
import torch

from klear.configs.settings.loss import GPPO, LOSSES
from klear.training.launch.result_files import OFF_POLICY, StepLines
from klear.training.losses import (
    POLICY_LOSSES,
    group_advantages,
    policy_weight,
    token_weight,
    weighted_nll,
)
from klear.training.rl.off_policy_counts import (
    by_entropy,
    clipped,
    headline,
    read_off_policy,
    summed,
    write_off_policy,
)
from klear.training.rl.rollout import MicroBatch
from klear.training.rl.statistics import RolloutRecord, TokenStatistics, gradient_length
from tests.training.conftest import ALONE, by_row

CLIP = GPPO()


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_the_length_of_a_gradient_is_what_backpropagation_gives(loss):
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(11, (3, 5, 1))
    logp = logits.log_softmax(-1).gather(-1, tokens)[..., 0]
    old = logp.detach() + 0.5 * torch.randn(3, 5, dtype=torch.float64)
    advantage = torch.tensor([[1.5], [-0.7], [0.0]], dtype=torch.float64)
    weight = policy_weight(LOSSES[loss](), logp, old, advantage)
    mask, positive = torch.ones(3, 5), torch.zeros(3)
    normalisers = {"policy_tokens": 7.0, "positive_tokens": 1.0, "lm_weight": 0.0}
    w = token_weight(weight, advantage, positive, mask, **normalisers)
    weighted_nll(logp, w).backward()
    length = gradient_length(logp, advantage, weight)
    assert torch.allclose(length / 7.0, logits.grad.abs().sum(-1), rtol=1e-9, atol=1e-12)
    assert length[2].eq(0).all()  # no advantage, no gradient


def counted(loss, ratios, advantages, entropies, logp=-1.0):
    """The table of single-token answers with these ratios, advantages and entropies."""
    statistics, ratio = TokenStatistics(), torch.tensor(ratios)[:, None]
    new = torch.full_like(ratio, logp)
    old, advantage = new - ratio.log(), torch.tensor(advantages)[:, None]
    weight = policy_weight(LOSSES[loss](), new, old, advantage)
    entropy = torch.tensor(entropies)[:, None]
    statistics.add(0, micro(advantage), new, old, entropy, weight, None, CLIP)
    (table,) = statistics.off_policy_tables(1, ALONE)
    return table


def micro(advantage, answers=1):
    """A micro-batch of so many answer tokens with these advantages [b, 1]."""
    b = len(advantage)
    ids, mask = torch.zeros(b, answers + 1, dtype=torch.long), torch.ones(b, answers).bool()
    return MicroBatch(ids, answers, mask, advantage, torch.ones(b).bool(), torch.arange(b)[:, None])


# Ã > 0 above (cut) and below; Ã < 0 below (cut), inside and above; Ã = 0 is not counted
RATIOS = [2.0, 0.5, 0.5, 1.0, 2.0, 3.0]
ADVANTAGES = [1.0, 1.0, -1.0, -1.0, -1.0, 0.0]
ENTROPIES = [1.5, 0.0, 0.6, 0.0, 3.0, 1.0]


def test_tokens_are_counted_by_sign_side_and_entropy():
    table = counted("gppo", RATIOS, ADVANTAGES, ENTROPIES)
    assert table[0].sum() == 5
    assert clipped(table)[0] == 2 / 5
    figures = headline([table])
    assert figures["off_policy/outside_positive"] == 1
    assert figures["off_policy/outside_negative"] == pytest.approx(2 / 3)
    # 1.5 and 0.6 of these and 3.0
    assert figures["off_policy/clipped_high_entropy"] == pytest.approx(2 / 3)
    rows = dict(by_entropy(table))
    share_of_tokens = [shares[0] for shares in rows.values()]
    assert share_of_tokens == pytest.approx([0.4, 0, 0, 0.2, 0.2, 0.2, 1])  # edges .01 .1 .5 1 2
    carried = table[1, :, :, 3].sum() / table[1].sum()  # by the clipped token of 0.6
    assert rows["0.5 to 1"] == pytest.approx([0.2, 0, 1, 1, carried, 1])
    assert rows["all"] == pytest.approx([1, 1, 2 / 3, 2 / 5, 1, clipped(table)[1]])


@pytest.mark.parametrize(
    ("loss", "carried", "total"),
    [  # F of each counted token: Eq. 12, Eq. 10, Eq. 16
        ("gppo", 1.28 + 0.8, 1.28 + 0.5 + 0.8 + 1.0 + 2.0),
        ("clip_higher", 0.0, 0.5 + 1.0 + 2.0),
        ("cispo", 1.28 + 0.8, 1.28 + 0.8 + 0.8 + 1.0 + 1.28),
    ],
)
def test_clipped_tokens_carry_the_gradient_that_the_loss_gives_them(loss, carried, total):
    table = counted(loss, RATIOS, ADVANTAGES, ENTROPIES)
    assert clipped(table)[1] == pytest.approx(carried / total)
    assert table[1].sum() == pytest.approx(total * 2 * (1 - math.exp(-1)), rel=1e-5)


def test_a_trainer_counts_every_update_and_the_first_is_on_policy(make_trainer, tmp_path):
    more = {"prompts": 4, "mini_batch": 1, "steps": 2, "learning_rate": 0.05}
    trainer = make_trainer(by_row(1.0, 0, 0, 0), **more)
    lines = StepLines(tmp_path / OFF_POLICY, after_step=0)
    trainer.on_off_policy = partial(write_off_policy, lines)
    trainer.train()
    rows = read_off_policy(tmp_path)
    recorded = [json.loads(line) for line in (tmp_path / OFF_POLICY).read_text().splitlines()]
    updates = [(row["step"], row["update"]) for row in recorded]
    assert updates == [(s, u) for s in (1, 2) for u in range(4)]
    # one answer of a group above its mean, three below
    assert all(row[0].sum((1, 2)).min() > 0 for row in rows)
    assert all(clipped(row)[0] == 0 for row in rows[::4])
    assert max(clipped(row)[0] for row in rows) > 0
    lines = [line for line in trainer.state.log_history if "clip/high" in line]
    for step, line in enumerate(lines):
        tables = rows[4 * step : 4 * step + 4]
        assert line["clip/high"] + line["clip/low"] == pytest.approx(clipped(summed(tables))[0])
        # the file keeps six digits of a gradient, so a share of sums of them is off by 1e-5 at most
        for name, value in headline(tables).items():
            assert line[name] == pytest.approx(value, rel=1e-5)


def test_one_token_that_is_not_finite_spoils_no_sum():
    statistics = TokenStatistics()
    new = torch.tensor([[-0.5, math.nan, -0.5]])
    batch = micro(torch.ones(1, 1), 3)
    statistics.add(0, batch, new, new, -new, torch.ones(1, 3), None, CLIP)
    (table,) = statistics.off_policy_tables(1, ALONE)
    assert table[0].sum() == 2
    assert table[1].sum() == pytest.approx(2 * 2 * (1 - math.exp(-0.5)))


NAN = math.nan


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (  # live, all right, wholly unscored, and half of it unscored but live
            [[1, -1, -1, -1], [1, 1, 1, 1], [NAN] * 4, [1, -1, NAN, NAN]],
            {"unscored": 6, "zero_advantage_share": 1 / 3,
             "tokens_per_second": 16 * 5 / 2},
        ),
        # not the mean of what groups or processes have: within each group rewards are equal
        ([[1, 1, NAN, 1], [-1, -1, -1, NAN]], {"reward/std": 1.0}),
        ([[NAN, NAN]], {"zero_advantage_share": 0, "unscored": 2}),
    ],
)  # fmt: skip
def test_shares_of_a_rollout_are_of_what_was_scored(groups, expected):
    rewards, nothing = torch.tensor(groups, dtype=torch.float32), torch.zeros(len(groups), 1)
    rollout: Any = None
    record = RolloutRecord(0, [], rollout, rewards, nothing, torch.full(rewards.shape, 5),
                          group_advantages(rewards), seconds=2.0).metrics()  # fmt: skip
    assert {name: record[name] for name in expected} == pytest.approx(expected)
    assert ("reward/std" in record) == bool(rewards.isfinite().any())
