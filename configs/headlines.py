"""The few settings that most runs change: what the short form of a profile offers.

A form submits every field, so a field that says what the profile says changes nothing. The others
become overrides as of `--set`, and the lines of the box of changes come after them.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from klear.configs.loading import load_profile
from klear.configs.settings.base import flat, read_catalogue
from klear.configs.settings.pipeline import Pipeline

SOURCES = "sources"


def _sets(name: str, profile: Pipeline) -> list[str]:
    """The settings that a field sets; `*` stands for each benchmark."""
    names = [protocol.name for protocol in profile.evaluate.protocols]
    patterns = read_catalogue("headlines")[name]["sets"]
    every = ([p.replace("*", n) for n in names] if "*" in p else [p] for p in patterns)
    return list(chain.from_iterable(every))


def values_of(profile: Pipeline) -> dict[str, Any]:
    """What the fields show of a profile: the first of the settings that each of them sets."""
    there_is = flat(profile.model_dump(mode="json"), lists=True)
    found = {name: there_is.get(_sets(name, profile)[0]) for name in read_catalogue("headlines")}
    return {**found, SOURCES: [source.name for source in profile.collect.sources]}


def overrides_of(profile: Pipeline, values: Mapping[str, Any], changes: str) -> list[str]:
    """What a form changes of its profile, as `--set` takes it."""
    shown, found = values_of(profile), list[str]()
    for name, value in values.items():
        if value == shown[name]:
            continue
        if name == SOURCES:
            kept = [s for s in profile.collect.sources if s.name in value]
            value = [s.model_dump(mode="json", exclude_unset=True) for s in kept]
        found += [f"{dotted}={json.dumps(value)}" for dotted in _sets(name, profile)]
    lines = (line.strip() for line in changes.splitlines())
    return [*found, *(line for line in lines if line and not line.startswith("#"))]


def settings_of(
    profile: str, values: Mapping[str, Any], changes: str = "", seed: int | None = None
) -> Pipeline:
    """The pipeline that a form asks for; raises ConfigError with all that is wrong."""
    told = overrides_of(load_profile(profile), values, changes)
    return load_profile(profile, [*told, *([] if seed is None else [f"seed={seed}"])])


def parameters_of(profile: str, overrides: Sequence[str], **more: Any) -> dict[str, Any]:
    """The form of a command: its fields as the profile has them, the overrides as changes."""
    return {**values_of(load_profile(profile)), "changes": "\n".join(overrides), **more}


def type_of(name: str, profile: Pipeline) -> Any:
    """The type of a field, with the bounds of the first setting that it sets."""
    if name == SOURCES:
        names = tuple(source.name for source in profile.collect.sources)
        return list[Literal[names]]  # type: ignore[valid-type]
    *groups, last = read_catalogue("headlines")[name]["sets"][0].split(".")
    model: type[BaseModel] = Pipeline
    for group in groups:
        if group != "*":
            kind: Any = model.model_fields[group].annotation
            model = get_args(kind)[0] if get_origin(kind) is tuple else kind
    field = model.model_fields[last]
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
