"""The short form of a profile: the settings that most runs change, and a box for all others.

`flows.forms.profile_form.profile_tiny` is made when it is asked for, by a worker or `klear run`:
each profile has fields of its own, with its values. A form submits every field, so one that says
what the profile says changes nothing. The others become overrides as of `--set`, and the lines of
the box come after them.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import BaseModel, Field

from klear.configs.loading import load_profile, profiles, run_name
from klear.configs.machine import load_machine
from klear.configs.settings.base import flat, read_catalogue
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline, StageName
from klear.flows.pipeline import run_pipeline, typed_name
from klear.tasks.tracking.prefect_states import ends_cancelled

SOURCES = "sources"
PREFIX = "profile_"
ABOUT = """Data, SFT, math RL, code RL, evaluation, report.

Args:
    changes: Any other setting, one a line as `sft.epochs=2`; the form `-advanced` has them all.
    until: Stop after this stage.
    force: Compute these stages even if the store has their results.
    seed: Of every random stage.
    verify: Reuse a result only if every byte is what was published."""


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


def settings_of(profile: str, values: Mapping[str, Any], changes: str, seed: int) -> Pipeline:
    """The pipeline that a form asks for; raises ConfigError with all that is wrong."""
    told = overrides_of(load_profile(profile), values, changes)
    return load_profile(profile, [*told, f"seed={seed}"])


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


def offered() -> dict[str, str]:
    """Profiles that have a form, by the name of it: the shipped ones and that of
    KLEAR_FORM_PROFILE."""
    extra = load_machine().form_profile
    return {**{p: p for p in profiles()}, **({Path(extra).stem: extra} if extra else {})}


def __getattr__(name: str) -> Flow[..., str]:
    profile = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and profile in offered():
        return form(profile)
    raise AttributeError(name)


@cache
def form(profile: str) -> Flow[..., str]:
    """The flow behind the short form of one profile; KeyError if there is none."""
    path = offered()[profile]

    def run(changes: str, until: str, force: list, seed: int, verify: bool, **fields: Any) -> str:
        return run_pipeline(settings_of(path, fields, changes, seed), until, force, verify)

    def called() -> str:
        """The name that was typed in the form, else profile, seed and what differs."""
        asked = dict(flow_run.parameters)
        changes, seed = asked.pop("changes"), asked.pop("seed")
        fields = {name: asked[name] for name in values_of(load_profile(path))}
        try:
            settings = settings_of(path, fields, changes, seed)
        except ConfigError:  # the run says what is wrong
            return typed_name() or profile
        return typed_name() or run_name(settings, load_profile(path))

    run.__name__ = run.__qualname__ = f"{PREFIX}{profile}"
    abouts = [f"    {n}: {h['about']}." for n, h in read_catalogue("headlines").items()]
    run.__module__, run.__doc__ = __name__, "\n".join([ABOUT, *abouts])
    run.__signature__ = inspect.Signature(_fields(path))  # type: ignore[attr-defined]
    return Flow(ends_cancelled(run), name="klear", flow_run_name=called)


def defaults(profile: str) -> dict[str, Any]:
    """What the form begins with."""
    return {field.name: field.default for field in _fields(offered()[profile])}


def _fields(path: str) -> list[inspect.Parameter]:
    """Each field with its type and what it begins with."""
    profile = load_profile(path)
    fields: list[tuple[str, Any, Any]] = [
        *((name, type_of(name, profile), value) for name, value in values_of(profile).items()),
        ("changes", str, ""),
        ("until", StageName, "report"),
        ("force", list[StageName], []),
        ("seed", Annotated[int, Field(ge=0, lt=2**32)], profile.seed),
        ("verify", bool, False),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(n, keyword, annotation=kind, default=d) for n, kind, d in fields]
