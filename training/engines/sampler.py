"""Answers of a transformers model to many prompts at once: rows of one batch, of unequal lengths.
Unlike in `generate`, rows leave soon after their end token, others take their places, and the cache
grows in place."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .interface import EngineError

ONE_THREAD_BELOW = 50_000_000  # parameters; a second core slows such a model down
FEWER = 0.8  # rows that have ended leave once this share or less is still running
NEARLY = 4  # tokens by which prompts may differ and need no padding
LONGER = (1.1, 8)  # times and tokens by which a prompt exceeds the shortest that is read with it
ONE_PASS = 16_384  # tokens, padding included
ROOM = 256  # columns of the cache to begin with; then half as many again
SORTED_BELOW = 1_024  # words; a larger vocabulary is not sorted to draw with top_p
TRIES = 8
MOST_GAP = 1.0  # nats by which rounding may make another token the likeliest


class RoomyLayer(DynamicLayer):
    """Keys and values [B, H, T, D] in buffers with room: most steps write, and copy nothing."""

    def __init__(self, buffers: Sequence[Tensor] = (), width: int = 0) -> None:
        super().__init__()
        self.buffers = list(buffers)
        if buffers:
            self.lazy_initialization(*buffers)
            self.keys, self.values = (buffer[:, :, :width] for buffer in buffers)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        start, end = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [key_states, value_states]
        elif end > self.buffers[0].shape[-2]:
            self.buffers = [pad(b, (0, 0, 0, end // 2)) for b in self.buffers]
        if start:
            for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
                buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values


def new_cache(model: PreTrainedModel) -> Cache:
    """An empty cache of the config's layers. Raises EngineError for rows that cannot be moved."""
    layers = list[Any](DynamicCache(config=model.config.get_text_config(decoder=True)).layers)
    for number, layer in enumerate(layers):
        if type(layer) is not LinearAttentionLayer:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise _unsupported(model, f"keeps a {type(layer).__name__}")
            layers[number] = RoomyLayer()
    return Cache(layers=layers)


def has_states(cache: Cache) -> bool:
    """Whether it holds states of linear attention or convolutions."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def _unsupported(model: PreTrainedModel, why: str) -> EngineError:
    return EngineError(
        f"{model.config.model_type} {why}, which engine kind=transformers cannot sample with: use "
        "kind=vllm (in RL: engine=vllm_colocate), or serve the model and use kind=openai"
    )


class Part(NamedTuple):
    """Rows of a cache that go into a batch; each ends in the last column of its cache."""

    cache: Cache
    rows: Tensor  # [B], of the cache
    width: int  # tokens of the longest


def join(parts: Sequence[Part], room: int) -> Cache:
    """One cache of all `parts`, with `room` more columns; before the shorter rows are zeros."""
    width, layers = max(part.width for part in parts), list[Any]()
    for number, first in enumerate(parts[0].cache.layers):
        if isinstance(first, LinearAttentionLayer):
            layers.append(_joined_states([part.cache.layers[number] for part in parts], parts))
            continue
        buffers = []
        for name in ("keys", "values"):
            states = [getattr(part.cache.layers[number], name) for part in parts]
            _, heads, _, dim = states[0].shape
            rows = sum(len(part.rows) for part in parts)
            buffers.append(states[0].new_empty(rows, heads, width + room, dim))
            pieces = buffers[-1].split([len(part.rows) for part in parts])
            for part, source, piece in zip(parts, states, pieces, strict=True):
                piece[:, :, : width - part.width] = 0
                piece[:, :, width - part.width : width] = source[part.rows, :, -part.width :]
        layers.append(RoomyLayer(buffers, width))
    return Cache(layers=layers)


def _joined_states(layers: Sequence[Any], parts: Sequence[Part]) -> Any:
    """The first of `layers` with the rows of all, of states without columns (linear attention)."""
    for name in ("conv_states", "recurrent_states"):
        states = getattr(layers[0], name)
        for number in (n for n, state in states.items() if state is not None):
            pairs = zip(layers, parts, strict=True)
            states[number] = torch.cat([getattr(x, name)[number][p.rows] for x, p in pairs])
    return layers[0]


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_tokens: int | Sequence[int],
    stop_ids: Sequence[int], temperature: float = 1.0, top_p: float = 1.0, batch_size: int = 256,
    generator: Generator | None = None, on_end: Callable[[int, list[int]], None] = lambda *_: None,
) -> list[list[int]]:  # fmt: skip
    """One answer (token ids, end token included) to each prompt, in order, of at most `max_tokens`
    (of all, or of each), `batch_size` at once, drawn from `generator`, or torch's global one.
    `on_end` is called with a prompt's number and its answer as soon as it has ended."""
    most = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    answers: list[list[int]] = [[] for _ in prompts]
    training, stops = model.training, torch.tensor(list(stop_ids), device=model.device)
    choose = partial(draw, temperature=temperature, top_p=top_p, generator=generator)
    model.eval()
    try:
        with heads_as_queries(model):
            for number, answer in _answers(model, prompts, most, stops, choose, batch_size):
                answers[number] = answer
                on_end(number, answer)
    finally:
        model.train(training)
    return answers


def _answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], most: Sequence[int], stops: Tensor,
    choose: Callable[[Tensor], Tensor], batch_size: int,
) -> Iterator[tuple[int, list[int]]]:  # fmt: skip
    """(number of the prompt, answer) of each as it ends. Prompts of like length are read together,
    and answered together with all others, padded on the left. Nearly equal ones are read up to the
    end of the shortest, without a mask, and a longer one goes on with its own tokens while others
    answer."""

    def integers(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=model.device, dtype=torch.long)

    waiting = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    places, tokens = list[int](), list[list[int]]()  # of each row: its prompt, what follows it
    # Declared: to infer types that go in circles takes a type checker minutes.
    length: Tensor = integers([])  # [B]: tokens up to now
    limit: Tensor = length  # of them at most
    last: Tensor = length  # the newest one
    unread: Tensor = length.reshape(0, 0)  # [B, ≤ NEARLY] of its prompt, then -1
    running: Tensor = length.bool()
    # padding would change a state that sums all tokens up
    longer = (1.0, 0) if has_states(new_cache(model)) else LONGER
    cache: Cache = Cache(layers=[])
    padded, logits = False, torch.empty(0)
    while waiting or places:
        if places:
            logits = _forward(model, last[:, None], cache, length if padded else None)
        if waiting and len(places) <= FEWER * batch_size:
            size = batch_size - len(places)
            joining, waiting = waiting[:size], waiting[size:]
            shortest, longest = len(prompts[joining[0]]), len(prompts[joining[-1]])
            end = shortest if not places and longest <= shortest + NEARLY else longest
            old = [Part(cache, integers(range(len(places))), int(length.max()))] if places else []
            groups = like_length([prompts[i][:end] for i in joining], longer)
            new = [_read(model, group) for group in groups]
            logits = torch.cat([*([logits] if places else []), *(first for _, first in new)])
            rest = [[*prompts[i][end:], *[-1] * NEARLY][:NEARLY] for i in joining]
            unread = pad(unread, (0, NEARLY - unread.shape[1]), value=-1)
            unread = torch.cat([unread, integers(rest)])
            length = torch.cat([length, integers([min(len(prompts[i]), end) for i in joining])])
            limit = torch.cat([limit, integers([len(prompts[i]) + most[i] for i in joining])])
            running = torch.cat([running, torch.ones(len(joining), device=model.device).bool()])
            cache = join([*old, *(part for part, _ in new)], ROOM)
            padded = bool((length < cache.get_seq_length()).any())
            places, tokens = places + joining, tokens + [[] for _ in joining]
        chosen, answering = choose(logits.float()), running
        if unread.shape[1]:
            answering = running & (unread[:, 0] < 0)
            chosen = torch.where(unread[:, 0] < 0, chosen, unread[:, 0])
            unread = unread[:, 1:]
        length, last = length + running, chosen  # an ended row takes no place beyond its last
        for row, token in zip(tokens, chosen.tolist(), strict=True):
            row.append(token)
        ended = answering & (torch.isin(chosen, stops) | (length >= limit))
        for row in ended.nonzero()[:, 0].tolist():
            yield places[row], tokens[row][len(prompts[places[row]]) - int(length[row]) :]
        running = running & ~ended
        keep = running.nonzero()[:, 0]
        if len(keep) <= FEWER * len(places):
            rows = keep.tolist()
            places, tokens = [places[i] for i in rows], [tokens[i] for i in rows]
            length, limit, last = length[keep], limit[keep], last[keep]
            unread, running = unread[keep], running[keep]
            if rows:
                cache = join([Part(cache, keep, int(length.max()) - 1)], ROOM)
                padded = bool((length <= cache.get_seq_length()).any())


def _forward(model: PreTrainedModel, ids: Tensor, cache: Cache, length: Tensor | None) -> Tensor:
    """Logits [B, V] after `ids` [B, T]; `length` [B]: tokens of rows padded on the left."""
    hidden: dict[str, Any] = {}
    if length is not None:
        columns = torch.arange(cache.get_seq_length() + ids.shape[1], device=ids.device)
        places = columns - (len(columns) - length[:, None])
        hidden["attention_mask"] = (places >= 0).long()
        hidden["position_ids"] = places[:, -ids.shape[1] :].clamp(min=0)
    elif has_states(cache):  # some of these count every token from 0 unless they are told
        start = cache.get_seq_length()
        hidden["position_ids"] = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
    more = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    return model(input_ids=ids, **more, **hidden).logits[:, -1]


def like_length(
    prompts: Sequence[Sequence[int]], longer: tuple[float, int] = LONGER
) -> Iterator[list[Sequence[int]]]:
    """`prompts`, sorted by length, in groups to be read in one pass each."""
    factor, more = longer
    group: list[Sequence[int]] = []
    for prompt in prompts:
        wide = group and len(prompt) > factor * len(group[0]) + more
        if wide or (group and (len(group) + 1) * len(prompt) > ONE_PASS):
            yield group
            group = []
        group.append(prompt)
    if group:
        yield group


def _read(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[Part, Tensor]:
    """`prompts` in one pass, equal ones once, and the logits [B, V] after them."""
    width = max(map(len, prompts))
    padded = torch.tensor([[*[-1] * (width - len(p)), *p] for p in prompts], device=model.device)
    ids, again = padded.unique(dim=0, return_inverse=True)
    length = (ids >= 0).sum(1)
    cache = new_cache(model)
    logits = _forward(model, ids.clamp(min=0), cache, None if (length == width).all() else length)
    if cache.get_seq_length() != width:
        raise _unsupported(model, "does not keep the keys and values of its tokens")
    return Part(cache, again, width), logits[again]


@torch.no_grad()
def check_sampling(model: PreTrainedModel) -> None:
    """Raise EngineError where prompts that are answered together are not answered as each without a
    cache, as where a model keeps states in a place of its own: they would be lost in silence."""
    words, size = random.Random(0), model.config.get_text_config().vocab_size
    prompts = [[words.randrange(size) for _ in range(n)] for n in (5, 9, 21)]
    gap = 0.0
    try:
        answers = sample(model, prompts, max_tokens=3, stop_ids=[], temperature=0)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = torch.tensor([[*prompt, *answer]], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
            gap = max(gap, float((logits.amax(-1) - chosen).max()))
    except (AttributeError, TypeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise _unsupported(model, f"takes no cache of transformers ({first})") from error
    if gap > MOST_GAP:
        raise _unsupported(model, f"answers otherwise with a cache than without, by {gap:.2g} nats")


@contextmanager
def heads_as_queries(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend by `grouped_attention`, if it is large and attends by sdpa."""
    before = model.config._attn_implementation
    if before != "sdpa" or model.num_parameters() < ONE_THREAD_BELOW:
        yield
        return
    AttentionInterface.register("grouped", grouped_attention)
    AttentionMaskInterface.register("grouped", sdpa_mask)
    model.set_attn_implementation("grouped")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def grouped_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' sdpa, but of one new token [B, H, 1, D] the query heads that share keys and
    values count as its queries: under a mask sdpa would copy keys and values for each."""
    batch, heads, length, dim = query.shape
    shared = key.shape[1]
    if length > 1 or heads == shared or more.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    grouped = query.reshape(batch, shared, heads // shared, dim)
    mixed = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=more.get("scaling")
    )
    return mixed.reshape(batch, 1, heads, value.shape[-1]), None


def draw(logits: Tensor, temperature: float, top_p: float, generator: Generator | None) -> Tensor:
    """One token id [B] from each row of `logits` [B, V]; temperature 0 takes the likeliest."""
    if temperature == 0:
        return logits.argmax(-1)
    chances = torch.softmax(logits / temperature, -1)
    if top_p == 1:
        return one_of(chances, generator)[:, 0]
    if chances.shape[1] < SORTED_BELOW:
        return _by_sorting(chances, top_p, generator)
    # drawn from all words, until one is drawn that belongs to the likeliest
    chosen = one_of(chances, generator)
    rows = torch.arange(len(chosen), device=logits.device)
    for _ in range(TRIES):
        open_chances = chances[rows]  # [rows, V]
        likelier = open_chances > open_chances.gather(1, chosen[rows])
        rows = rows[open_chances.masked_fill(~likelier, 0).sum(-1) >= top_p]
        if not len(rows):
            return chosen[:, 0]
        chosen[rows] = one_of(chances[rows], generator)
    chosen[rows] = _by_sorting(chances[rows], top_p, generator)[:, None]
    return chosen[:, 0]


def _by_sorting(chances: Tensor, top_p: float, generator: Generator | None) -> Tensor:
    ordered, index = chances.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    return index.gather(1, one_of(ordered, generator))[:, 0]


def one_of(weights: Tensor, generator: Generator | None) -> Tensor:
    """An index [B, 1] into each row of `weights` [B, V] ≥ 0, as likely as its share of the row:
    where a number in (0, total] falls among the cumulated weights (`torch.multinomial` draws V
    numbers a row). In float32 unlikely words of a large vocabulary would share an edge."""
    edges = weights.cumsum(-1, dtype=torch.float64)
    total = edges[:, -1:]
    spot = (1 - torch.empty_like(total).uniform_(generator=generator)) * total
    return torch.searchsorted(edges, spot)
