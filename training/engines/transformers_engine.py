"""Sampling with plain transformers: for small models and machines without vLLM.

`generate` keeps every row until the last one ends, and its cache copies all keys and values each
step. In `sample` rows leave the batch soon after their end-of-turn token and the cache grows in
place: small models on CPU spend most of a rollout on exactly that.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from klear.configs.settings.engines import EngineSettings, Sampling
from klear.eval.records import Sample
from klear.training.engines.interface import EngineError, Key, Request
from klear.training.engines.local_model import LocalModel, yarn_parameters
from klear.training.models import load_model
from klear.training.render import prompt_ids

ONE_THREAD_BELOW = 50_000_000  # parameters; a second core slows such a model down
COMPACT_AT = 0.8  # drop finished rows once this share or less is still running
LONGER = 1.25  # and 16 tokens: so much longer than the shortest of its batch a prompt may be, for
# what is over is read token by token


class TransformersEngine(LocalModel):
    """A causal language model in this process, on the GPU if there is one.

    Prompts of like length share a batch, and a batch has one seed: a resumed run makes the same
    batches again, so that it ends with the same samples as one that was never killed.
    """

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
        how = {"revision": settings.revision, "config": self.config}
        model: Any = load_model(settings.model, dtype=settings.runtime.dtype, **how)
        self.model = model.eval()
        if torch.cuda.is_available():
            self.model = model.cuda()
        elif model.num_parameters() < ONE_THREAD_BELOW:
            torch.set_num_threads(1)

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
        found = dict(zip(fitting, answers, strict=True))
        for i, request in enumerate(batch):
            yield self.sample(request, len(encoded[i]), found.get(i))


class RoomyLayer(DynamicLayer):
    """Keys and values [B, H, T, D] in a buffer with room: a step writes, and copies nothing."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            batch, heads, _, dim = key_states.shape
            self.buffers = [key_states.new_empty(batch, heads, self.room, dim) for _ in range(2)]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def select(self, rows: torch.Tensor) -> None:
        """The batch is these of its rows, in this order."""
        end, chosen = self.get_seq_length(), list[torch.Tensor]()
        for buffer in self.buffers:
            chosen.append(buffer.new_empty(len(rows), *buffer.shape[1:]))
            chosen[-1][:, :, :end] = buffer[rows, :, :end]
        self.buffers = chosen
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int | Sequence[int],
    stop_ids: Sequence[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
    on_end: Callable[[int, list[int]], None] = lambda *_: None,
) -> list[list[int]]:
    """One answer (token ids, end token included) to each prompt, in order.

    `max_tokens` holds for all prompts, or is one number for each. Prompts of like length share a
    batch. Draws from `generator`, or torch's global one. `on_end` is called with the place of a
    prompt and its answer as soon as it has ended, while others are sampled.
    """
    most = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: list[list[int]] = [[] for _ in prompts]
    training, stops = model.training, torch.tensor(list(stop_ids), device=model.device)
    choose = partial(draw, temperature=temperature, top_p=top_p, generator=generator)
    model.eval()
    try:
        while order:
            longest = LONGER * len(prompts[order[0]]) + 16
            rows = [i for i in order[:batch_size] if len(prompts[i]) <= longest]
            del order[: len(rows)]
            shares = [prompts[i] for i in rows], [most[i] for i in rows]
            for row, answer in _sample_batch(model, *shares, stops, choose):
                answers[rows[row]] = answer
                on_end(rows[row], answer)
    finally:
        model.train(training)
    return answers


def _sample_batch(
    model: PreTrainedModel,
    prompts: list[Sequence[int]],
    most: list[int],
    stops: torch.Tensor,
    choose: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[tuple[int, list[int]]]:
    """(place of the prompt, answer) of each as it ends.

    Nothing is padded: all rows are read up to the end of the shortest prompt, and a longer one
    goes on with its own tokens while others are answered. Attention with a mask would copy all
    keys and values in every step, where query heads share them."""
    device, ends = model.device, [len(p) + n for p, n in zip(prompts, most, strict=True)]
    room, start = max(ends), min(map(len, prompts))
    tokens = torch.tensor([[*p, *[0] * (room - len(p))] for p in prompts], device=device)
    first, end = torch.tensor([[len(p) for p in prompts], ends], device=device)
    layers = model.config.get_text_config().num_hidden_layers
    cache = Cache(layers=[RoomyLayer(room) for _ in range(layers)])
    rows = torch.arange(len(prompts), device=device)  # which prompt each row of the batch is
    running = torch.ones_like(rows, dtype=torch.bool)
    ids, again = tokens[:, :start].unique(dim=0, return_inverse=True)  # equal ones are read once
    for t in range(start, room):
        logits = model(
            input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]
        if t == start:
            logits = logits[again]
            for layer in cache.layers:
                layer.select(again)  # type: ignore[attr-defined]
        answering = first[rows] <= t
        chosen = torch.where(answering, choose(logits.float()), tokens[rows, t])
        tokens[rows, t] = chosen
        ended = answering & running & (torch.isin(chosen, stops) | (end[rows] <= t + 1))
        for row in rows[ended].tolist():
            yield row, tokens[row, len(prompts[row]) : t + 1].tolist()
        running &= ~ended
        alive = int(running.sum())
        if alive == 0:
            break
        if alive <= COMPACT_AT * len(rows):
            keep = running.nonzero()[:, 0]
            for layer in cache.layers:
                layer.select(keep)  # type: ignore[attr-defined]
            rows, chosen, running = rows[keep], chosen[keep], running[keep]
        ids = chosen[:, None]


def draw(
    logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator | None
) -> torch.Tensor:
    """One token id [B] from each row of `logits` [B, V]; temperature 0 takes the likeliest."""
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = torch.softmax(logits / temperature, -1)
    if top_p < 1:
        ordered, index = probabilities.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p, 0.0)
        return index.gather(1, one_of(ordered, generator))[:, 0]
    return one_of(probabilities, generator)[:, 0]


def one_of(weights: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """An index [B, 1] into each row of `weights` [B, V] ≥ 0, as likely as its share of the row:
    where a number in (0, total] falls among the cumulated weights. `torch.multinomial` draws V
    random numbers a row instead of one. In float64: in float32 several unlikely words of a large
    vocabulary would have one edge, and all but the first of them no chance."""
    edges = weights.cumsum(-1, dtype=torch.float64)
    total = edges[:, -1:]
    spot = (1 - torch.empty_like(total).uniform_(generator=generator)) * total
    return torch.searchsorted(edges, spot)
