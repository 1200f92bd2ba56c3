"""Sums, maxima and shares over the processes of one training run."""

import torch
from accelerate import Accelerator
from torch import Tensor


class Processes:
    """The processes of an accelerator; every method but `local` is called by all of them."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    @property
    def rank(self) -> int:
        return self._accelerator.process_index

    @property
    def size(self) -> int:
        return self._accelerator.num_processes

    def total(self, values: list[float]) -> list[float]:
        """Element-wise sum."""
        tensor = torch.tensor(values, device=self._accelerator.device)
        return self._accelerator.reduce(tensor, reduction="sum").tolist()  # type: ignore[union-attr]

    def largest(self, value: float) -> float:
        tensor = torch.tensor([value], device=self._accelerator.device)
        return self._accelerator.gather(tensor).max().item()  # type: ignore[union-attr]

    def counts(self, count: int) -> list[int]:
        """`count` of every process, by rank."""
        tensor = torch.tensor([count], device=self._accelerator.device)
        return self._accelerator.gather(tensor).tolist()  # type: ignore[union-attr]

    def gathered(self, local: Tensor) -> Tensor:
        """[B] of every process as [B × processes], by rank."""
        return self._accelerator.gather(local)  # type: ignore[return-value]

    def local(self, grouped: Tensor) -> Tensor:
        """This process's part of a tensor over all processes, flattened to [B]."""
        flat = grouped.reshape(-1)
        size = flat.numel() // self.size
        return flat[self.rank * size : (self.rank + 1) * size]
