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
from training.engines.answers import (
    load_tokenizer_and_config,
    make_sample,
    think_prefill,
    too_long,
    yarn_parameters,
)
from training.engines.interface import Request
from training.render import prompt_ids
from training.room import Room, positions_of
from training.sampler import sample
from training.untrusted import WEIGHTS

ONE_THREAD_BELOW = 50_000_000  # parameters; a second core slows such a model down


class TransformersEngine:
    """A causal language model in this process, on the GPU if there is one."""

    whole_batches = True

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling
        self.tokenizer, self.config, self.ends = load_tokenizer_and_config(settings)
        self.prefill = think_prefill(settings, self.tokenizer)
        if settings.yarn_factor:
            for name, value in yarn_parameters(self.config, settings.yarn_factor).items():
                setattr(self.config, name, value)
        self.room = Room(settings.model, positions_of(self.config))
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
        encoded = prompt_ids(self.tokenizer, [r.prompt for r in batch])
        rooms = [self.room.after(len(ids), self.sampling.max_tokens) for ids in encoded]
        fitting = [i for i, room in enumerate(rooms) if room]
        for i in set(range(len(batch))) - set(fitting):
            yield too_long(batch[i], self.settings, len(encoded[i]))
        if not fitting:
            return
        prompts = [encoded[i] for i in fitting]
        draw = self._with_generate if self._needs_generate() else self._with_sampler
        answers = draw(prompts, [rooms[i] for i in fitting], batch_seed(batch))
        for i, prompt, ids in zip(fitting, prompts, answers, strict=True):
            yield make_sample(
                batch[i], self.settings, self.tokenizer, len(prompt), ids, self.ends, self.prefill
            )

    def _needs_generate(self) -> bool:
        """Our sampler knows the paper's protocol: temperature and top_p."""
        return self.sampling.top_k is not None or self.sampling.repetition_penalty is not None

    def _with_sampler(
        self, prompts: list[list[int]], rooms: list[int], seed: int
    ) -> list[list[int]]:
        return sample(
            self.model,
            prompts,
            max_tokens=rooms,
            stop_ids=self.ends,
            pad_id=self.ends[0],  # masked wherever it stands
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            batch_size=len(prompts),
            generator=torch.Generator(self.model.device).manual_seed(seed),
        )

    def _with_generate(
        self, prompts: list[list[int]], rooms: list[int], seed: int
    ) -> list[list[int]]:
        """transformers' own loop, which has every option and copies its cache at every step."""
        width, device = max(map(len, prompts)), self.model.device
        rows = [[self.ends[0]] * (width - len(p)) + list(p) for p in prompts]
        mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
        hot = self.sampling.temperature > 0
        drawn = {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p,
                 "top_k": self.sampling.top_k or 0} if hot else {}  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            out = self.model.generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=max(rooms),
                do_sample=hot,
                repetition_penalty=self.sampling.repetition_penalty or 1.0,
                eos_token_id=list(self.ends),
                pad_token_id=self.ends[0],
                **drawn,
            )
        answers = zip(out[:, width:].tolist(), rooms, strict=True)
        return [_up_to_end(ids[:room], self.ends) for ids, room in answers]


def _up_to_end(ids: list[int], ends: tuple[int, ...]) -> list[int]:
    """The answer with its end token and without the padding behind it."""
    stop = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return ids[: stop + 1]


def batch_seed(batch: list[Request]) -> int:
    """A seed that depends on every request of the batch and their order."""
    text = ",".join(str(r.seed) for r in batch)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
