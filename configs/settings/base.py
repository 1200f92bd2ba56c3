"""What every settings class shares: frozen, no unknown keys, and a key of what has a meaning."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import ComputedFieldInfo, FieldInfo

Share = Annotated[float, Field(ge=0, le=1)]
ACRONYMS = ("API", "GPU", "KV", "MLP", "RL", "SFT", "URL", "vLLM", "YaRN")


def label(name: str, field: FieldInfo | ComputedFieldInfo | None = None) -> str:
    """What a web form calls a field: `rl_math` → `RL math`."""
    spelled = {word.lower(): word for word in ACRONYMS}
    first, *others = name.split("_")
    return " ".join([spelled.get(first, first.capitalize()), *(spelled.get(w, w) for w in others)])


class Settings(BaseModel):
    """Says *what* a stage computes: part of the stage's cache key.

    The text below a field is its description in the web form.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", field_title_generator=label, use_attribute_docstrings=True
    )
    constants: ClassVar[tuple[str, ...]] = ()
    """Class variables that are part of the key all the same: settings once, of one value ever."""


class Runtime(Settings):
    """Says *how* a stage computes (workers, memory, micro-batches): never part of the key."""


NOT_IN_KEY = "not in key"
"""Annotated mark of one field that says where or how, beside others that say what."""
DEFAULT_NOT_IN_KEY = "default not in key"
"""Annotated mark of a field that came when results had been published: at its default it is not
part of the key, so that they are still found."""


def fields_with_meaning(settings: BaseModel) -> Iterator[str]:
    """Names of the fields that say what, and not how."""
    for name, field in type(settings).model_fields.items():
        if NOT_IN_KEY not in field.metadata and not isinstance(getattr(settings, name), Runtime):
            yield name


def is_default_not_in_key(settings: BaseModel, name: str) -> bool:
    field = type(settings).model_fields[name]
    default = field.get_default(call_default_factory=True)
    return DEFAULT_NOT_IN_KEY in field.metadata and getattr(settings, name) == default


def key_of(settings: Settings) -> str:
    """Canonical JSON of what the settings mean, without what is marked or Runtime."""
    return json.dumps(_meaning(settings), sort_keys=True, separators=(",", ":"))


def _meaning(value: Any) -> Any:
    if isinstance(value, BaseModel):
        names = [n for n in fields_with_meaning(value) if not is_default_not_in_key(value, n)]
        names += value.constants if isinstance(value, Settings) else ()
        return {name: _meaning(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [_meaning(v) for v in value]
    if isinstance(value, dict):
        return {k: _meaning(v) for k, v in value.items()}
    return value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_group = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{name}.") if is_group else {prefix + name: value}
    return found


def layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`: groups merge key by key; lists and values are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = layered(old, value)
        merged[key] = value
    return merged
