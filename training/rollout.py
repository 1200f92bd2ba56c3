"""A rollout, and the optimizer updates it becomes: no padding kept, dead groups left out."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Rollout:
    """The answers of this process, one row a sequence, and what the loss needs of them."""

    tokens: list[Tensor]
    """Prompt and answer, [T_i], no padding."""
    prompt_length: list[int]
    advantage: Tensor
    """[B]"""
    positive: Tensor
    """[B] bool: correct answers, Φ of Eq. 13."""
    keep: Tensor
    """[B] bool: forwarded and counted; the others left before any compute."""
    sampling_logp: list[Tensor] | None = None
    """The sampler's log-probabilities of the answer tokens, where it reported them."""

    def answer_length(self, i: int) -> int:
        return len(self.tokens[i]) - self.prompt_length[i]

    @staticmethod
    def of_padded(
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        advantage: Tensor,
        positive: Tensor,
        keep: Tensor,
        sampling_logp: Tensor | None = None,
    ) -> "Rollout":
        """From TRL's padded tensors: prompts [B, P] (left), completions [B, C] (right)."""
        rows = zip(prompt_ids, prompt_mask.bool(), completion_ids, completion_mask.bool(),
                   strict=True)  # fmt: skip
        tokens, lengths = [], []
        for prompt, prompt_kept, answer, answer_kept in rows:
            tokens.append(torch.cat([prompt[prompt_kept], answer[answer_kept]]))
            lengths.append(int(prompt_kept.sum()))
        sampled = None
        if sampling_logp is not None:
            kept = completion_mask.bool()
            sampled = [row[k] for row, k in zip(sampling_logp, kept, strict=True)]
        return Rollout(tokens, lengths, advantage, positive, keep, sampled)


@dataclass
class MicroBatch:
    """One forward pass. Padded: b sequences of like length [b, T], right-padded to the longest.
    Packed: b = 1, the sequences one after another, told apart by `position_ids`."""

    input_ids: Tensor
    answers: int
    """The last `answers` columns hold every answer token of the batch."""
    mask: Tensor
    """[b, answers] bool: answer tokens."""
    advantage: Tensor
    """[b, 1]; packed: [1, answers]"""
    positive: Tensor
    """[b]; packed: [1, answers]"""
    share: float = 1.0
    """0 for a batch that only keeps this process in step with the others."""
    old_logp: Tensor | None = None
    """[b, answers]; None while the policy has not moved since the rollout."""
    position_ids: Tensor | None = None
    """[1, T] of a packed batch, from 0 in every sequence."""
    sampling_logp: Tensor | None = None
    """[b, answers]"""

    @property
    def labels(self) -> Tensor:
        """[b, T]: the tokens to score, −100 on prompts and padding."""
        labels = torch.full_like(self.input_ids, -100)
        answers = slice(self.input_ids.shape[1] - self.answers, None)
        labels[:, answers] = torch.where(self.mask, self.input_ids[:, answers], -100)
        return labels


@dataclass
class Update:
    """One optimizer update: micro-batches and the normalisers of the whole mini-batch."""

    micro_batches: list[MicroBatch]
    policy_tokens: float
    positive_tokens: float
