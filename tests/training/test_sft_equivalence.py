"""The SFT loss and its gradient: the mean NLL over a step's answer tokens, however it is cut."""

import math

import pytest
import torch
from transformers import TrainerCallback

from configs.settings.training import SFTSettings, TrainRuntime
from training import sft
from training.checkpoints.saving import load_model, load_tokenizer
from training.launch.jobs import SFTJob
from training.sft import IGNORED, tokenized

STEP_TOKENS = 2_000


class Keep(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer
        self.gradients = []
        self.rates = []

    def on_pre_optimizer_step(self, args, state, control, **_):
        named = self.trainer.model.named_parameters()
        self.gradients.append({n: p.grad.clone() for n, p in named})
        self.rates.append(self.trainer.optimizer.param_groups[0]["lr"])


@pytest.fixture
def train(files, tmp_path):
    """`train(micro_batch_tokens, **settings)`: the callback that kept gradients and rates."""

    def run(micro_batch_tokens, name="run", **changes):
        settings = SFTSettings(
            **{"epochs": 1, "batch_tokens": STEP_TOKENS, "max_length": 256, "max_grad_norm": 1e9,
               "learning_rate": 8e-5, "min_learning_rate": 4e-5, **changes},
            runtime=TrainRuntime(bf16=False, gradient_checkpointing=False, threads=1,
                                 micro_batch_tokens=micro_batch_tokens),
        )  # fmt: skip
        tokenizer = load_tokenizer(files["checkpoint"])
        model = load_model(files["checkpoint"], dtype="float32")
        job = SFTJob(out=tmp_path / name, base=files["checkpoint"], examples=files["examples"],
                     settings=settings, seed=4)  # fmt: skip
        rows = tokenized(files["examples"], tokenizer, 256, tmp_path / name / "tokens")
        trainer = sft.build_trainer(job, model, tokenizer, rows, tmp_path / name / "checkpoints")
        kept = Keep(trainer)
        trainer.add_callback(kept)
        trainer.train()
        return kept, trainer

    return run


def close(a, b, rtol=2e-4, atol=1e-6):
    for name, gradient in a.items():
        torch.testing.assert_close(gradient, b[name], rtol=rtol, atol=atol)


def test_a_step_has_one_gradient_for_every_micro_batch(train):
    whole, _ = train(10_000, "whole")
    for budget in (1, 250, 500, 1_000):  # single sequences, then about 2, 4 and 8 at a time
        cut, trainer = train(budget, f"cut{budget}")
        assert trainer.args.gradient_accumulation_steps > 1
        assert len(cut.gradients) == len(whole.gradients) > 1
        close(cut.gradients[0], whole.gradients[0])


def test_packing_changes_the_layout_and_not_the_gradient(train):
    padded, _ = train(500, "padded")
    packed, trainer = train(500, "packed", packing=True)
    assert trainer.padding_free
    close(packed.gradients[0], padded.gradients[0])


def test_the_gradient_is_the_mean_nll_of_the_answers_in_float64(train, files):
    kept, trainer = train(300)
    plan = trainer.plan[: trainer.args.gradient_accumulation_steps]
    model = load_model(files["checkpoint"], dtype="float32").double()
    nll, tokens = torch.zeros((), dtype=torch.float64), 0
    for i in (i for batch in plan for i in batch):
        ids = torch.tensor(trainer.train_dataset[i]["input_ids"])
        labels = torch.tensor(trainer.train_dataset[i]["labels"])
        logp = model(ids[None]).logits[0, :-1].log_softmax(-1)
        scored = labels[1:] != IGNORED
        nll = nll - logp.gather(1, ids[1:, None])[:, 0][scored].sum()
        tokens += int(scored.sum())
    (nll / tokens).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            kept.gradients[0][name].double(), parameter.grad, rtol=1e-3, atol=1e-6
        )


def test_the_learning_rate_falls_on_a_cosine_from_8e5_to_4e5(train):
    """§4.1; the rate of step k of n is that of the cosine at k/n."""
    kept, _ = train(10_000, batch_tokens=256, warmup_share=0.0)
    n = len(kept.rates)
    assert n > 10
    expected = [4e-5 + 4e-5 * (1 + math.cos(math.pi * k / n)) / 2 for k in range(n)]
    assert kept.rates == pytest.approx(expected, rel=1e-6)


def test_the_paper_trains_on_32k_tokens():
    s = SFTSettings()
    assert (s.max_length, s.epochs) == (32_768, 4)
    assert (s.learning_rate, s.min_learning_rate) == (8e-5, 4e-5)
