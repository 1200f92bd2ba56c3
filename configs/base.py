"""What every settings class shares: frozen, no unknown keys, and a key of what has a meaning."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import ComputedFieldInfo, FieldInfo

_SPELLED = {"sft": "SFT", "rl": "RL", "lora": "LoRA", "gpu": "GPU", "mlp": "MLP", "kv": "KV"}
_SPELLED |= {
    "api": "API",
    "url": "URL",
    "vllm": "vLLM",
    "yarn": "YaRN",
    "std": "standard deviation",
}


def label(name: str, field: FieldInfo | ComputedFieldInfo | None = None) -> str:
    """What a web form calls a field that has no title: `rl_math` → `RL math`."""
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    return " ".join(
        [words[0] if words[0] != name.split("_")[0] else words[0].capitalize(), *words[1:]]
    )


class Settings(BaseModel):
    """Says *what* a stage computes: part of the stage's cache key."""

    model_config = ConfigDict(frozen=True, extra="forbid", field_title_generator=label)


class Runtime(Settings):
    """Says *how* a stage computes (workers, memory, micro-batches): never part of the key."""


class HowOnly:
    """Annotated mark of one field that says where or how, beside others that say what."""


HOW = HowOnly()


class Later:
    """Annotated mark of a field that came when results had been published: at its default it is
    not part of the key, so that they are still found."""


LATER = Later()


def fields_with_meaning(settings: BaseModel) -> Iterator[str]:
    """Names of the fields that say what, and not how."""
    for name, field in type(settings).model_fields.items():
        marked = any(isinstance(mark, HowOnly) for mark in field.metadata)
        if not marked and not isinstance(getattr(settings, name), Runtime):
            yield name


def is_unsaid(settings: BaseModel, name: str) -> bool:
    """Whether a field came later and is at its default: then no key depends on it."""
    field = type(settings).model_fields[name]
    later = any(isinstance(mark, Later) for mark in field.metadata)
    return later and getattr(settings, name) == field.get_default(call_default_factory=True)


def key_of(settings: Settings) -> str:
    """Canonical JSON of what the settings mean, without any HOW or Runtime part."""
    return json.dumps(_meaning(settings), sort_keys=True, separators=(",", ":"))


def _meaning(value: Any) -> Any:
    if isinstance(value, BaseModel):
        said = (name for name in fields_with_meaning(value) if not is_unsaid(value, name))
        return {name: _meaning(getattr(value, name)) for name in said}
    if isinstance(value, (list, tuple)):
        return [_meaning(v) for v in value]
    if isinstance(value, dict):
        return {k: _meaning(v) for k, v in value.items()}
    return value
