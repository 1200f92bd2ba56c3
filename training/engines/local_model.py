"""What the local engines share: where an answer stops, what its text is, how long it may be."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from transformers import AutoConfig, GenerationConfig

from ...configs.settings.engines import EngineSettings, Sampling
from ...eval.records import Sample
from ...eval.thinking import foreign_tags, name_tags, with_think_tags
from ..models import NO_CODE, load_tokenizer, positions_of
from ..render import chat_format
from .interface import Engine, EngineError, Request


class LocalModel(Engine):
    """A model's tokenizer and configuration, and what follows from them for every answer."""

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        """Raises EngineError for a model that cannot be loaded, or asked by its template."""
        super().__init__(settings, sampling)
        name, where = settings.model, dict[str, Any](revision=settings.revision)
        stops: Any = ()
        with suppress(OSError):  # a model may come without a generation config
            stops = GenerationConfig.from_pretrained(settings.model, **where).eos_token_id
        stops = stops if isinstance(stops, (list, tuple)) else [stops]
        try:
            self.config: Any = AutoConfig.from_pretrained(name, **where, **NO_CODE)
            self.tokenizer = load_tokenizer(name, settings.revision)
            own = settings.chat_template_kwargs
            self.chat = chat_format(name, self.tokenizer, own, stops, settings.revision)
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise EngineError(f"engine model={settings.model} cannot be loaded: {first}") from error
        self.ends = tuple(sorted(self.chat.stops))
        """Ids that end an answer: the model's own end tokens and the end of the turn."""
        self.positions = positions_of(self.config, settings.yarn_factor)
        """Tokens of prompt and answer together."""

    def room(self, prompt: int) -> int:
        """Tokens that the answer to a prompt of so many may have; 0: it fills the context alone."""
        most = self.sampling.max_tokens
        return most if self.positions is None else max(0, min(most, self.positions - prompt))

    def sample(self, request: Request, prompt_tokens: int, ids: Sequence[int] | None) -> Sample:
        """A Sample from ids (no end token: `length`; None: no room); EngineError: foreign tags."""
        text, finish = "", "error"
        if ids is not None:
            stop = next((i for i, token in enumerate(ids) if token in self.ends), None)
            text = self.chat.continuation(ids)
            finish = "length" if stop is None else "stop" if text.strip() else "empty"
            text = (self.settings.think_prefill or self.chat.prefill) + text
            if tags := self.settings.think_tags:
                text = with_think_tags(text, tags)
            elif tags := foreign_tags(text):  # the judge would take their thinking for the answer
                raise EngineError(name_tags(self.settings.model, tags))
        model, tokens = self.settings.model, len(ids or ())
        return request.answered(model, text, finish, prompt_tokens, tokens)


def yarn_parameters(config: Any, factor: float) -> dict[str, Any]:
    """The overrides that stretch the context of `config` by `factor` with YaRN (§4.3).
    `max_position_embeddings` is the stretched length, as transformers and vLLM expect it."""
    trained = int(config.max_position_embeddings)
    rope = dict(config.rope_parameters or {})
    rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    return {"rope_parameters": rope, "max_position_embeddings": int(trained * factor)}
