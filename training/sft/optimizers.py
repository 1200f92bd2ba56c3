"""Muon for the matrices of the transformer, AdamW for everything else, as one optimizer."""

from typing import Any

import torch
from torch import nn


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimizers that share one schedule, one state dict and one `step`.

    Muon (torch.optim.Muon) takes the 2-D weights outside the embeddings; AdamW takes embeddings,
    norms and the output head. Needs unsharded weights (one device or DDP).
    """

    def __init__(
        self, model: nn.Module, muon_lr: float, adamw_lr: float, weight_decay: float
    ) -> None:
        matrices, rest = split_parameters(model)
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, lr=muon_lr, weight_decay=weight_decay, momentum=0.95),
            torch.optim.AdamW(rest, lr=adamw_lr, weight_decay=0.0, betas=(0.9, 0.98)),
        )
        super().__init__([{"params": matrices}, {"params": rest}], {"lr": adamw_lr})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(2-D weights outside embeddings and output head, all other trainable parameters)."""
    outside = {
        id(p)
        for m in model.modules()
        if isinstance(m, nn.Embedding) or m is getattr(model, "lm_head", None)
        for p in m.parameters()
    }
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in outside]
    chosen = {id(p) for p in matrices}
    return matrices, [p for p in trainable if id(p) not in chosen]
