"""What every settings class shares: frozen, no unknown keys, and a key that ignores Runtime."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Says *what* a stage computes: part of the stage's cache key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Runtime(Settings):
    """Says *how* a stage computes (workers, memory, micro-batches): never part of the key."""


def key_of(settings: Settings) -> str:
    """Canonical JSON of the settings without any Runtime part: equal meaning, equal text."""
    return json.dumps(_meaning(settings), sort_keys=True, separators=(",", ":"))


def _meaning(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = ((n, getattr(value, n)) for n in type(value).model_fields)
        return {n: _meaning(v) for n, v in fields if not isinstance(v, Runtime)}
    if isinstance(value, (list, tuple)):
        return [_meaning(v) for v in value]
    if isinstance(value, dict):
        return {k: _meaning(v) for k, v in value.items()}
    return value
