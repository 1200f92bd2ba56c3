"""The losses of other papers, in float64: autograd of what they publish, and TRL's own code."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.configs.settings.loss import CONSTANTS, DGPO, DPPO, GRPO, LOSSES, VESPO, AnyLoss
from klear.configs.settings.training import RLSettings
from klear.training.losses import POLICY_LOSSES, Answers, policy_weight, token_weight
from klear.training.packing import rl_schedule
from klear.training.rl.config import ARGUMENTS, GPPOConfig, gppo_config
from tests.training.conftest import by_row
from tests.training.test_gppo_equivalence import fixed

ROWS, LENGTH = 12, 6
RATIOS = torch.tensor([1.0, 3.0, 0.3, 1.05, 0.95, 1.4])
"""Between which the answers of either sign move: inside, above and below every clip range."""


def policies(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """log π, log π_old, Ã [ROWS, 1] and a ragged mask; the last two answers moved by e^±30."""
    g = torch.Generator().manual_seed(seed)
    moved = RATIOS.double().log().repeat_interleave(2)[:, None]
    log_ratio = moved + 0.3 * torch.randn(ROWS, LENGTH, generator=g, dtype=torch.float64)
    old = -4 + 0.5 * torch.randn(ROWS, LENGTH, generator=g, dtype=torch.float64)
    old[::3] /= 4
    logp = (old + log_ratio).clamp(max=-0.01)
    logp[-1], old[-1] = -6.0, -0.5
    logp[-2], old[-2] = -0.5, -6.0
    advantage = torch.tensor([1.5, -0.5], dtype=torch.float64).repeat(ROWS // 2)[:, None]
    mask = torch.arange(LENGTH)[None] < torch.tensor([6, 6, 2, 5, 3, 4] * 2)[:, None]
    mask[-2:] = True
    return logp, old, advantage, mask


def ours(loss: AnyLoss) -> tuple[torch.Tensor, torch.Tensor]:
    """F and −∂L/∂log π = F·Ã/Z, [ROWS, LENGTH]."""
    logp, old, advantage, mask = policies()
    tokens = float(mask.sum())
    answers = Answers(torch.arange(ROWS)[:, None], mask, tokens / ROWS)
    weight = policy_weight(loss, logp, old, advantage, answers)
    nothing = {"positive_tokens": 0.0, "lm_weight": 0.0}
    step = token_weight(weight, advantage, torch.zeros(ROWS), mask, policy_tokens=tokens, **nothing)
    return weight, step


def of_trl(loss_type: str, level: str = "token", **options: Any) -> torch.Tensor:
    """−∂L/∂log π of the loss that the installed TRL computes."""
    logp, old, advantage, mask = policies()
    leaf = logp.requires_grad_()
    args = GRPOConfig("out", use_cpu=True, bf16=False, steps_per_generation=1, **options)
    trainer = SimpleNamespace(
        args=args, loss_type=loss_type, importance_sampling_level=level, beta=0.0,
        epsilon_low=args.epsilon, epsilon_high=args.epsilon_high, use_vllm=False,
        get_gamma_weights=GRPOTrainer.get_gamma_weights, aux_loss_enabled=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1, model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(leaf), None),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
    )  # fmt: skip
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    inputs = {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask,
        "advantages": advantage[:, 0], "old_per_token_logps": old,
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    stand_in: Any = trainer
    GRPOTrainer._compute_loss(stand_in, None, inputs).backward()
    assert leaf.grad is not None
    return -leaf.grad


@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        ("clip_higher", {"loss_type": "dapo"}),
        ("gspo", {"loss_type": "grpo", "level": "sequence"}),
        ("sapo", {"loss_type": "sapo"}),
        ("vespo", {"loss_type": "vespo"}),
    ],
)
def test_the_gradient_is_that_of_trls_own_loss(loss, theirs):
    weight, step = ours(LOSSES[loss]())
    published = of_trl(**theirs, epsilon=0.2, epsilon_high=0.28)
    torch.testing.assert_close(step, published, rtol=1e-7, atol=1e-15)  # TRL has τ in float32
    mask, sign = policies()[3], policies()[2].sign().expand(ROWS, LENGTH)
    for side in (1, -1):
        kept = weight[mask & (sign == side)]
        assert kept.max() > 0.5
        assert kept.min() < 0.01 if loss != "sapo" else kept.min() < 0.2


def test_the_constants_of_the_losses_are_trls_where_it_has_them(tmp_path):
    theirs = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    shared = {
        ARGUMENTS[constant]: value
        for loss in ("sapo", "vespo")
        for constant, value in LOSSES[loss]()
        if constant != "name"
    }
    assert len(shared) == 6
    assert shared == {name: getattr(theirs, name) for name in shared}


def test_the_cispo_preset_is_trls_cispo_wherever_the_ratio_is_not_below_a_thousandth(tmp_path):
    """TRL's epsilon_high is the cap itself (ScaleRL's 5), ours is the distance from 1."""
    s = RLSettings.model_validate({"loss": {"name": "cispo", "eps_low": 0.999, "eps_high": 4}})
    config = gppo_config(s, 0, rl_schedule(s, 1), tmp_path)
    step = ours(config.loss)[1]
    theirs = of_trl("cispo", epsilon_high=5.0)
    logp, old, _, _ = policies()
    ratio = (logp - old).exp()
    torch.testing.assert_close(step, theirs, rtol=1e-9, atol=1e-15)
    assert (ratio > 5).any()
    assert 0.001 <= ratio.min() < 0.01


def dgpo(logp, old, advantage, s):
    """arXiv 2603.14389: Σ W·Ã·π with W under a stop-gradient, C_left and C_right written out."""
    n, m = s.n, s.m
    low, high = 1 - s.eps_low, 1 + s.eps_high
    prob, old_prob, frozen = logp.exp(), old.exp(), logp.detach().exp()
    below = low**-n * old_prob ** -(n + 1) * frozen**n
    above = high ** (1 / m) * old_prob ** (1 / m - 1) * frozen ** (-1 / m)
    ratio, weight = frozen / old_prob, 1 / old_prob
    weight = torch.where((advantage < 0) & (ratio < low), below, weight)
    weight = torch.where((advantage > 0) & (ratio > high), above, weight)
    return weight * advantage * prob


def dppo_tv(logp, old, advantage, s):
    """arXiv 2602.04879 as verl has it: Σ M·sg(min(δ, c))·Ã·log π."""
    moved = logp.detach().exp() - old.exp()
    inside = torch.where(advantage > 0, moved <= s.eps_high, moved >= -s.eps_low)
    return inside * (logp - old).exp().detach().clamp(max=s.cap) * advantage * logp


@pytest.mark.parametrize(
    ("published", "loss"),
    [
        (dgpo, DGPO()),
        (dgpo, DGPO(eps_low=0.1, eps_high=0.2, n=2, m=3)),
        (dppo_tv, DPPO(eps_low=0.1, eps_high=0.2, cap=3.0)),
    ],
)
def test_the_gradient_is_that_of_the_published_objective(published, loss):
    logp, old, advantage, mask = policies()
    leaf = logp.requires_grad_()
    (published(leaf, old, advantage, loss) * mask).sum().div(mask.sum()).backward()
    step = ours(loss)[1]
    torch.testing.assert_close(step, leaf.grad, rtol=1e-9, atol=1e-15)
    ratio, sign = (logp - old).detach().exp(), advantage.sign().expand(ROWS, LENGTH)
    for side in (1, -1):  # of both signs some tokens are clipped and some are not
        changed = (step * mask.sum() / advantage / ratio)[mask & (sign == side)]
        assert (changed < 0.99).any()
        assert ((changed - 1).abs() < 1e-9).any()


@pytest.mark.parametrize("loss", ["gspo", "sapo", "vespo"])
def test_answers_of_a_packed_row_weigh_what_they_weigh_in_rows_of_their_own(loss):
    logp, old, advantage, mask = policies()
    numbers, settings = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH), LOSSES[loss]()
    rows = policy_weight(settings, logp, old, advantage, Answers(numbers, mask, 4.5))
    packed = [x.expand(ROWS, LENGTH).flatten()[None] for x in (logp, old, advantage, numbers, mask)]
    answers = Answers(packed[3], packed[4], 4.5)
    weights = policy_weight(settings, *packed[:3], answers)
    torch.testing.assert_close(weights[packed[4]], rows[mask])


@pytest.mark.parametrize(
    ("loss", "unread"),
    [
        ("cispo", {"beta1": 0.5}), ("dgpo", {"beta2": 0.5}), ("grpo", {"eps_high": 0.3}),
        ("sapo", {"eps_low": 0.1}), ("vespo", {"eps_high": 0.3}), ("gspo", {"dual_clip": 10.0}),
        ("gppo", {"n": 2}), ("dgpo", {"temperature_pos": 2.0}), ("vespo", {"cap": 10.0}),
    ],
)  # fmt: skip
def test_a_setting_that_the_loss_does_not_read_is_refused_with_those_that_do(loss, unread):
    ((constant, value),) = unread.items()
    own, name = ", ".join(CONSTANTS[loss]), ARGUMENTS[constant]
    fix = f" is not read by the loss {loss}, which reads {own}: leave it out, or take the loss "
    readers = [n for n, constants in CONSTANTS.items() if constant in constants]
    with pytest.raises(ValidationError, match=constant + fix + " or ".join(readers)):
        RLSettings.model_validate({"loss": {"name": loss, **unread}})
    readers = [n for n, constants in CONSTANTS.items() if name in {ARGUMENTS[c] for c in constants}]
    with pytest.raises(ValueError, match=f"{name}={value}{fix}{' or '.join(readers)}"):
        GPPOConfig("out", use_cpu=True, bf16=False, policy_loss=loss, **{name: value})


@pytest.mark.parametrize("advantage", ["none", "maxrl"])
def test_advantages_without_a_deviation_refuse_its_kind(advantage):
    message = f"advantage_std=unbiased is not read with advantage={advantage}: leave it out"
    with pytest.raises(ValidationError, match=message):
        RLSettings(advantage=advantage, advantage_std="unbiased")
    with pytest.raises(ValueError, match=message):
        GPPOConfig("out", use_cpu=True, bf16=False, advantage=advantage, advantage_std="unbiased")


def test_every_constant_of_every_loss_reaches_the_trainer_as_the_settings_say_it(tmp_path):
    assert list(LOSSES) == list(POLICY_LOSSES)
    for name, constants in CONSTANTS.items():
        defaults = {c: getattr(LOSSES[name](), c) for c in constants}
        values = {c: 9.0 if value is None else 2 * value for c, value in defaults.items()}
        s = RLSettings.model_validate({"loss": {"name": name, **values}})
        assert gppo_config(s, 0, rl_schedule(s, 1), tmp_path).loss == s.loss
    s = RLSettings(loss=VESPO(), entropy_weight=0.01, advantage="none")
    config = gppo_config(s, 0, rl_schedule(s, 1), tmp_path)
    assert (config.entropy_coef, config.advantage) == (0.01, "none")
    grpo = GPPOConfig("out", use_cpu=True, bf16=False, policy_loss="grpo", epsilon=0.1)
    assert grpo.loss == GRPO(eps=0.1)
    with pytest.raises(ValueError, match="cap is not read by the loss grpo, which reads"):
        GPPOConfig("out", use_cpu=True, bf16=False, policy_loss="grpo", loss_constants={"cap": 2})
    as_trl = GPPOConfig("out", use_cpu=True, bf16=False, epsilon=0.1, epsilon_high=None)
    assert as_trl.loss.clip_range == (0.9, 1.1)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [("none", [1.25, -0.75, 0.25, -0.75]), ("maxrl", [3.0, -1.0, -1.0, -1.0])],
)
def test_the_trainer_divides_as_it_is_told_and_counts_right_answers_for_maxrl(
    make_trainer, scale, expected
):
    """Rewards of 1, -1, 0 and -1 have a mean of -0.25; one of four is right."""
    pay, kept = by_row(1.0, -1.0, 0.0, -1.0), []
    trainer = make_trainer(pay, rollout_func=fixed, advantage=scale)
    trainer.on_rollout = kept.append
    trainer.train()
    assert kept[0].rollout.advantage.tolist() == pytest.approx(expected * 4)
    assert kept[0].rewards[0].tolist() == [1.0, -1.0, 0.0, -1.0]
