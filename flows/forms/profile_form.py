"""The short form of a profile: the settings that most runs change, and a box for all others.

`flows.forms.profile_form.profile_tiny` is made when it is asked for, by a worker or `klear run`:
each profile has fields of its own, with its values.
"""

import inspect
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import Field

from klear.configs.headlines import settings_of, type_of, values_of
from klear.configs.loading import load_profile, profiles, run_name
from klear.configs.machine import load_machine
from klear.configs.settings.base import read_catalogue
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import StageName
from klear.flows.pipeline import run_pipeline, typed_name
from klear.tasks.tracking.prefect_states import ends_cancelled

PREFIX = "profile_"
ABOUT = """Data, SFT, math RL, code RL, evaluation, report.

Args:
    changes: Any other setting, one a line as `sft.epochs=2`; the form `-advanced` has them all.
    until: Stop after this stage.
    force: Compute these stages even if the store has their results.
    seed: Of every random stage.
    verify: Reuse a result only if every byte is what was published."""


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
