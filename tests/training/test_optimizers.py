"""Muon and AdamW as one optimizer."""

import copy

import pytest
import torch
from torch import nn

from training.sft import MuonAndAdamW, split_parameters


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.embed.weight  # tied

    def forward(self, ids):
        return self.lm_head(torch.tanh(self.middle(self.embed(ids))))


def optimizer_of(model):
    return MuonAndAdamW(model, muon_lr=0.02, adamw_lr=1e-3, weight_decay=0.01)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(5)).logsumexp(-1).sum().backward()
    optimizer.step()


def test_muon_gets_the_matrices_outside_embeddings_and_head():
    model = Small()
    matrices, rest = split_parameters(model)
    assert [id(p) for p in matrices] == [id(model.middle.weight)]
    assert {id(p) for p in rest} == {id(model.embed.weight), id(model.middle.bias)}


def test_a_schedule_scales_both_learning_rates():
    optimizer = optimizer_of(Small())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    assert [g["lr"] for g in optimizer.parts[0].param_groups] == [pytest.approx(0.01)]
    assert [g["lr"] for g in optimizer.parts[1].param_groups] == [pytest.approx(5e-4)]


def test_a_restored_state_continues_to_the_same_weights():
    torch.manual_seed(0)
    model, other = Small(), Small()
    optimizer = optimizer_of(model)
    step(model, optimizer)
    other.load_state_dict(model.state_dict())
    restored = optimizer_of(other)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(other, restored)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
