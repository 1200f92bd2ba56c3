"""Sampling with plain transformers: for small models and machines without vLLM.

Prompts of like length share a batch, and a batch has one seed: a resumed run makes the same
batches again, so that it ends with the same samples as one that was never killed.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM

from configs.engines import EngineSettings, Sampling
from eval.records import Sample
from training.engines.answers import load_tokenizer_and_config, make_sample, yarn_parameters
from training.engines.interface import EngineError, Request
from training.render import prompt_ids
from training.sampler import sample

ONE_THREAD_BELOW = 50_000_000  # parameters; a second core slows such a model down


class TransformersEngine:
    """A causal language model in this process, on the GPU if there is one."""

    whole_batches = True

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling
        self.tokenizer, self.config, self.ends = load_tokenizer_and_config(settings)
        if settings.yarn_factor:
            for name, value in yarn_parameters(self.config, settings.yarn_factor).items():
                setattr(self.config, name, value)
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model,
            revision=settings.revision,
            config=self.config,
            dtype=settings.runtime.dtype,
        )
        self.model = model.eval()
        if torch.cuda.is_available():
            self.model = model.cuda()
        elif model.num_parameters() < ONE_THREAD_BELOW:
            torch.set_num_threads(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self.model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def batches(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Batches of like prompt length, the longest first: what does not fit fails at once."""
        order = sorted(requests, key=lambda r: -len(r.prompt))
        size = self.settings.runtime.batch_size
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        for batch in self.batches(list(requests)):
            yield from self._answer_batch(batch)

    def _answer_batch(self, batch: list[Request]) -> Iterator[Sample]:
        prompts = prompt_ids(self.tokenizer, [r.prompt for r in batch])
        generator = torch.Generator(self.model.device).manual_seed(batch_seed(batch))
        answers = sample(
            self.model,
            prompts,
            max_tokens=self._room(max(map(len, prompts))),
            stop_ids=self.ends,
            pad_id=self.ends[0],  # masked wherever it stands
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            batch_size=len(batch),
            generator=generator,
        )
        for request, prompt, ids in zip(batch, prompts, answers, strict=True):
            yield make_sample(request, self.settings, self.tokenizer, len(prompt), ids, self.ends)

    def _room(self, longest: int) -> int:
        """Tokens an answer may have beside the longest prompt of its batch."""
        positions = getattr(self.config, "max_position_embeddings", None) or 1 << 30
        room = min(self.sampling.max_tokens, positions - longest)
        if room < 1:
            raise EngineError(
                f"a prompt of {longest} tokens leaves no room in the {positions} positions of "
                f"{self.settings.model}"
            )
        return room


def batch_seed(batch: list[Request]) -> int:
    """A seed that depends on every request of the batch and their order."""
    text = ",".join(str(r.seed) for r in batch)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
