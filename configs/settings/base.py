"""What every settings class shares: frozen, no unknown keys, and a key of what has a meaning."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from .explain import ConfigError

CATALOGUE = Path(__file__).parents[1] / "catalogue"
MOST_SHOWN = 3
LONGEST_VALUE = 40
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Price = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


@cache
def read_catalogue(name: str) -> dict[str, Any]:
    """What `configs/catalogue/<name>.toml` says by name: `catalogue`, of the keys of a `Source`;
    `benchmarks` and their `problems`; `gpus`; `models`, of their sizes; `prices` of endpoints."""
    return tomllib.loads((CATALOGUE / f"{name}.toml").read_text(encoding="utf-8"))


class Settings(BaseModel):
    """Says *what* a stage computes: part of its cache key, class variables too. The text below a
    field is its description in the web form."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Runtime(Settings):
    """Says *how* a stage computes (workers, memory, micro-batches): no part of the key, but for
    fields that are marked `IN_KEY`, where they are not the default."""


class Workers(Runtime):
    workers: PositiveInt = 1
    """Processes that compute parts"""


NOT_IN_KEY = "not in key"
"""Annotated mark of one field that says where or how, beside others that say what."""
IN_KEY = "in key"
"""Annotated mark of one field that is in the key where it is not the default: of a Runtime, like
the type of numbers, or one that came later than results without it."""


ChatTemplateKwargs = dict[str, Any] | None
"""Arguments of a chat template, like {enable_thinking: false}; None: those of the checkpoint."""


def key_of(settings: Settings) -> str:
    """Canonical JSON of what the settings mean, without what is marked or Runtime."""
    return json.dumps(meaning(settings, as_key=True), sort_keys=True, separators=(",", ":"))


def meaning(value: Any, *, as_key: bool = False) -> Any:
    """What settings say of the result, nested, under the names that profiles and manifests have;
    `as_key` as the key has it, with the constants and under the names of fields."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        names = [n for n in fields if _has_meaning(value, n, as_key=as_key)]
        if as_key:
            names += type(value).__class_vars__
        shown = {n: f.alias for n, f in fields.items() if f.alias and not as_key}
        return {shown.get(n, n): meaning(getattr(value, n), as_key=as_key) for n in names}
    if isinstance(value, (list, tuple)):
        return [meaning(v, as_key=as_key) for v in value]
    if isinstance(value, dict):
        return {k: meaning(v, as_key=as_key) for k, v in value.items()}
    return value


def _has_meaning(settings: BaseModel, name: str, *, as_key: bool) -> bool:
    field, value = type(settings).model_fields[name], getattr(settings, name)
    if isinstance(value, Runtime):
        return any(_has_meaning(value, n, as_key=as_key) for n in type(value).model_fields)
    if IN_KEY in field.metadata:
        return not as_key or value != field.default
    return NOT_IN_KEY not in field.metadata and not isinstance(settings, Runtime)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names; entries of a list of groups by their `name`, else index."""
    if isinstance(value, Mapping):
        entries: Any = value.items()
    elif isinstance(value, list) and all(isinstance(v, Mapping) for v in value) and value:
        entries = [(v.get("name") or i, v) for i, v in enumerate(value)]
    else:
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for name, inner in entries:
        leaves |= flat(inner, f"{prefix}.{name}" if prefix else str(name))
    return leaves


def short(value: Any) -> str:
    """A value as one would type it: 2.5e-5, null, ["a", "b"]."""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def first_few(texts: Sequence[str]) -> list[str]:
    """The first of many, and how many more there are."""
    more = len(texts) - MOST_SHOWN
    return [*texts[:MOST_SHOWN], f"and {more} more"] if more > 0 else list(texts)


def group_of(value: Any) -> dict[str, Any]:
    """A group to set keys of; a bare name is the group of that name, as in `loss: cispo`."""
    return {"name": value} if isinstance(value, str) else value if isinstance(value, dict) else {}


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: groups merge key by key, values and lists are replaced, and `name+` is
    a list to add to the one below; it stays `name+` while only a default is below it."""
    merged = dict(below)
    for key, value in above.items():
        name, adds = key.removesuffix("+"), key.endswith("+")
        old = merged.get(name)
        if adds:
            if not isinstance(value, list):
                raise ConfigError([f"{key}: {value!r:.60} is no list; write {key}: [...]"])
            target = name if isinstance(old, list) else key
            merged[target] = [*(merged.get(target) or []), *value]
        elif isinstance(value, dict):
            merged[key] = layered(group_of(old), value)
        else:
            merged[key] = value
            merged.pop(f"{key}+", None)
    return merged
