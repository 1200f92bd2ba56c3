"""What the local engines share: where an answer stops, what its text is, how long it may be."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from configs.engines import EngineSettings
from eval.records import FinishReason, Sample
from training.engines.interface import EngineError, Request
from training.render import conversation, end_of_turn, response_texts
from training.untrusted import NO_CODE

_PREFILL = re.compile(r"<think>\s*(</think>\s*)?\Z")


def load_tokenizer_and_config(
    settings: EngineSettings,
) -> tuple[PreTrainedTokenizerBase, Any, tuple[int, ...]]:
    """Tokenizer, model configuration and the ids that end an answer."""
    where = {"revision": settings.revision}
    try:
        config = AutoConfig.from_pretrained(settings.model, **where, **NO_CODE)
        tokenizer = AutoTokenizer.from_pretrained(settings.model, **where, **NO_CODE)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise EngineError(f"engine model={settings.model} cannot be loaded: {first}") from error
    if tokenizer.chat_template is None:
        raise EngineError(f"the tokenizer of {settings.model} has no chat template; give it one")
    return tokenizer, config, stop_ids(settings, tokenizer)


def stop_ids(settings: EngineSettings, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The model's own end tokens and the end of the turn."""
    found: list[Any] = [end_of_turn(tokenizer), tokenizer.eos_token_id]
    with suppress(OSError):  # a model may come without a generation config
        own = GenerationConfig.from_pretrained(settings.model, revision=settings.revision)
        found += own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    return tuple(sorted({i for i in found if isinstance(i, int)}))


def think_prefill(settings: EngineSettings, tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template writes of the answer itself: `<think>`, or an empty think block.

    Templates of DeepSeek-R1 and its distillations open the block, so the model's own text begins
    in the middle of it. The setting `think_prefill` goes before what the template shows.
    """
    if settings.think_prefill:
        return settings.think_prefill
    text = tokenizer.apply_chat_template(
        conversation("?"), add_generation_prompt=True, tokenize=False
    )
    found = _PREFILL.search(str(text))
    return found[0] if found else ""


def yarn_parameters(config: Any, factor: float) -> dict[str, Any]:
    """The overrides that stretch the context of `config` by `factor` with YaRN (§4.3).

    `max_position_embeddings` is the stretched length, as transformers and vLLM expect it.
    """
    trained = int(config.max_position_embeddings)
    rope = dict(config.rope_parameters or {})
    rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    return {"rope_parameters": rope, "max_position_embeddings": int(trained * factor)}


def make_sample(
    request: Request,
    settings: EngineSettings,
    tokenizer: PreTrainedTokenizerBase,
    prompt_tokens: int,
    ids: Sequence[int],
    ends: Sequence[int],
    prefill: str = "",
) -> Sample:
    """A Sample from generated ids. Ids that hold no end token were cut: finish_reason `length`.

    `prefill` is `think_prefill`'s: judged with the answer.
    """
    stop = next((i for i, token in enumerate(ids) if token in ends), None)
    kept = list(ids) if stop is None else list(ids[:stop])
    text = response_texts(tokenizer, [kept])[0]
    finish: FinishReason = "length" if stop is None else "stop" if text.strip() else "empty"
    return Sample(
        problem_id=request.problem_id,
        index=request.index,
        model=settings.model,
        text=prefill + text,
        finish_reason=finish,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(ids),
    )


def too_long(request: Request, settings: EngineSettings, prompt_tokens: int) -> Sample:
    """What stands for an answer where the prompt alone fills the model's context."""
    return Sample(
        problem_id=request.problem_id,
        index=request.index,
        model=settings.model,
        text="",
        finish_reason="error",
        prompt_tokens=prompt_tokens,
    )
