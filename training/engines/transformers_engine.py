"""Sampling with plain transformers: for small models and machines without vLLM."""

import hashlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch

from ...configs.settings.engines import EngineSettings, Sampling
from ...eval.records import Sample
from ..models import load_model
from .interface import EngineError, Key, Request
from .local_model import LocalModel, yarn_parameters
from .sampler import ONE_THREAD_BELOW, check_sampling, sample


class TransformersEngine(LocalModel):
    """A causal language model in this process, on the GPU if there is one. Prompts of like length
    share a batch, and a batch has one seed: a resumed run makes the same batches and samples again.
    """

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        if settings.runtime.data_parallel > 1 or sampling.top_k or sampling.repetition_penalty:
            fix = "use kind=vllm for data_parallel, top_k and repetition_penalty"
            own = "is one copy of the model and samples with temperature and top_p"
            raise EngineError(f"engine kind=transformers {own}: {fix}")
        super().__init__(settings, sampling)
        if settings.yarn_factor:
            for name, value in yarn_parameters(self.config, settings.yarn_factor).items():
                setattr(self.config, name, value)
        runtime, where = settings.runtime, {"revision": settings.revision, "config": self.config}
        model: Any = load_model(settings.model, dtype=runtime.dtype, **where)
        self.model = model.eval()
        if torch.cuda.is_available():
            self.model = model.cuda()
        elif model.num_parameters() < ONE_THREAD_BELOW:
            torch.set_num_threads(1)
        check_sampling(self.model)

    def answer(self, requests: Iterable[Request], done: Container[Key] = ()) -> Iterator[Sample]:
        """Batches of like prompt length, the longest first: what does not fit fails at once."""
        order = sorted(requests, key=lambda r: -len(r.prompt))
        size = self.settings.runtime.batch_size
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            if not all(r.key in done for r in batch):
                yield from self._answer_batch(batch)

    def _answer_batch(self, batch: list[Request]) -> Iterator[Sample]:
        encoded = self.chat.prompt_ids([r.prompt for r in batch])
        rooms = [self.room(len(ids)) for ids in encoded]
        fitting = [i for i, room in enumerate(rooms) if room]
        seeds = ",".join(str(r.seed) for r in batch)
        seed = int.from_bytes(hashlib.sha256(seeds.encode()).digest()[:7], "big")
        answers = sample(
            self.model,
            [encoded[i] for i in fitting],
            max_tokens=[rooms[i] for i in fitting],
            stop_ids=self.ends,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            batch_size=len(batch),
            generator=torch.Generator(self.model.device).manual_seed(seed),
        )
        answer_of = dict(zip(fitting, answers, strict=True))
        for i, request in enumerate(batch):
            yield self.sample(request, len(encoded[i]), answer_of.get(i))
