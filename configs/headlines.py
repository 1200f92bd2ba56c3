"""The few settings that most runs change: what the short form of a profile offers.

A form submits every field, so a field that says what the profile says changes nothing. The others
become overrides as of `--set`, and the lines of the box of changes come after them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from klear.configs.loading import load_profile
from klear.configs.settings.base import flat, read_catalogue
from klear.configs.settings.pipeline import Pipeline

SOURCES = "sources"
EACH = ".*."  # of all entries of a list


def values_of(profile: Pipeline) -> dict[str, Any]:
    """What the fields show of a profile: the first of the settings that each of them sets."""
    there_is = flat(profile.model_dump(mode="json"), lists=True)
    found: dict[str, Any] = {}
    for name, headline in read_catalogue("headlines").items():
        first = headline["sets"][0]
        if name == SOURCES:
            found[name] = [source.name for source in profile.collect.sources]
        elif first.count(EACH):
            begin, _, end = first.partition(EACH)
            entries = (n for n in there_is if n.startswith(f"{begin}.") and n.endswith(f".{end}"))
            found[name] = there_is[next(entries)]
        else:
            found[name] = there_is[first]
    return found


def overrides_of(profile: Pipeline, values: Mapping[str, Any], changes: str) -> list[str]:
    """What a form changes of its profile, as `--set` takes it."""
    shown, found = values_of(profile), list[str]()
    for name, value in values.items():
        if value == shown[name]:
            continue
        for dotted in read_catalogue("headlines")[name]["sets"]:
            begin, each, end = dotted.partition(EACH)
            if name == SOURCES:
                kept = [s for s in profile.collect.sources if s.name in value]
                entries = [s.model_dump(mode="json", exclude_unset=True) for s in kept]
                found.append(f"{dotted}={json.dumps(entries)}")
            elif each:
                protocols = profile.evaluate.protocols
                found += [f"{begin}.{p.name}.{end}={json.dumps(value)}" for p in protocols]
            else:
                found.append(f"{dotted}={json.dumps(value)}")
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
