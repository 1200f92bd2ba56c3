"""Sampling with plain transformers: for small models and machines without vLLM.

Prompts of like length share a batch, and a batch has one seed: a resumed run makes the same
batches again, so that it ends with the same samples as one that was never killed.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from configs.settings.engines import EngineSettings, Sampling
from eval.records import Sample
from training.checkpoints.safe_loading import WEIGHTS
from training.engines.answers import LocalModel, yarn_parameters
from training.engines.interface import EngineError, Key, Request
from training.engines.sampler import sample
from training.render import prompt_ids

ONE_THREAD_BELOW = 50_000_000  # parameters; a second core slows such a model down


class TransformersEngine(LocalModel):
    """A causal language model in this process, on the GPU if there is one."""

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        if settings.runtime.data_parallel > 1 or sampling.top_k or sampling.repetition_penalty:
            raise EngineError(
                "engine kind=transformers is one copy of the model and samples with temperature "
                "and top_p: use kind=vllm for data_parallel, top_k and repetition_penalty"
            )
        super().__init__(settings, sampling)
        if settings.yarn_factor:
            for name, value in yarn_parameters(self.config, settings.yarn_factor).items():
                setattr(self.config, name, value)
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model,
            revision=settings.revision,
            config=self.config,
            dtype=settings.runtime.dtype,
            **WEIGHTS,
        )
        self.model = model.eval()
        if torch.cuda.is_available():
            self.model = model.cuda()
        elif model.num_parameters() < ONE_THREAD_BELOW:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        del self.model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def answer(
        self, requests: Iterable[Request], finished: Container[Key] = ()
    ) -> Iterator[Sample]:
        """Batches of like prompt length, the longest first: what does not fit fails at once."""
        order = sorted(requests, key=lambda r: -len(r.prompt))
        size = self.settings.runtime.batch_size
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            if not all(r.key in finished for r in batch):
                yield from self._answer_batch(batch)

    def _answer_batch(self, batch: list[Request]) -> Iterator[Sample]:
        encoded = prompt_ids(self.tokenizer, [r.prompt for r in batch])
        rooms = [self.room(len(ids)) for ids in encoded]
        fitting = [i for i, room in enumerate(rooms) if room]
        answers = sample(
            self.model,
            [encoded[i] for i in fitting],
            max_tokens=[rooms[i] for i in fitting],
            stop_ids=self.ends,
            pad_id=self.ends[0],  # masked wherever it stands
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            batch_size=len(batch),
            generator=torch.Generator(self.model.device).manual_seed(batch_seed(batch)),
        )
        found = dict(zip(fitting, answers, strict=True))
        for i, request in enumerate(batch):
            yield self.sample(request, len(encoded[i]), found.get(i))


def batch_seed(batch: list[Request]) -> int:
    """A seed that depends on every request of the batch and their order."""
    text = ",".join(str(r.seed) for r in batch)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
