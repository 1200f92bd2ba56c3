"""What the Prefect UI offers: a short form of each profile and one of every setting, and one that
runs any stage alone.

`klear.flows.forms.forms.profile_tiny` is made when it is asked for, by a worker or `klear run`:
each profile has fields of its own, with its values. A form submits every field, so one that says
what the profile says changes nothing. The others become overrides as of `--set`, and the lines of
the box come after them.

A stage alone takes the results of a run that is complete, so that a score and the curve beside it
are of the same model. Other inputs may be named one by one; what does not belong together is
refused unless it is asked for.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import Flow, flow
from prefect.runtime import flow_run
from pydantic import Field

from ...configs.loading import load_profile, profiles, run_name
from ...configs.machine import load_machine
from ...configs.settings.base import first_few, flat, key_of, read_catalogue, short
from ...configs.settings.explain import ConfigError
from ...configs.settings.loss import LOSSES
from ...configs.settings.pipeline import Pipeline, StageName
from ...tasks.observe.prefect import interrupts_as_cancelled, show_markdown
from ...tasks.observe.run_context import run_context
from ...tasks.report.figures import number
from ...tasks.report.page import literal, with_inline_plots
from ...tasks.store.lineage import (
    LATEST,
    ancestry,
    find_by_prefix,
    provenance_conflicts,
    resolve_run,
)
from ...tasks.store.shared import open_store
from ...tasks.store.store import Artifact, Manifest, Store
from ..pipeline import publish_plan, run_pipeline, run_spec, typed_name
from ..plan import plan
from ..stages import calls, compute_one

SOURCES = "sources"
PREFIX = "profile_"
ABOUT = """Data, SFT, math RL, code RL, evaluation, report.

Args:
    changes: Any other setting, one a line as `sft.batch_tokens=1024`; `-advanced` has them all.
    until: Stop after this stage.
    force: Compute these stages even if the store has their results.
    seed: Of every random stage.
    verify: Reuse a result only if every byte is what was published.
    settings: What is computed; prefilled with the whole profile."""


def _sets(name: str, profile: Pipeline) -> list[str]:
    """The settings that a field sets; `*` stands for each benchmark."""
    names = [protocol.name for protocol in profile.evaluate.protocols]
    patterns = read_catalogue("headlines")[name]["sets"]
    every = ([p.replace("*", n) for n in names] if "*" in p else [p] for p in patterns)
    return list(chain.from_iterable(every))


def values_of(profile: Pipeline) -> dict[str, Any]:
    """What the fields show of a profile: the first of the settings that each of them sets."""
    there_is = flat(profile.model_dump(mode="json"))
    paths = {name: _sets(name, profile)[0] for name in read_catalogue("headlines")}
    found = {name: there_is.get(p, there_is.get(f"{p}.name")) for name, p in paths.items()}
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
    return [*found, *_lines(changes)]


def _lines(changes: str) -> list[str]:
    """Those of a box of changes that say something."""
    lines = map(str.strip, changes.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


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
    if name == "loss":
        return Literal[tuple(LOSSES)]  # type: ignore[valid-type]
    *groups, last = read_catalogue("headlines")[name]["sets"][0].split(".")
    model: Any = profile
    for group in groups:
        model = model[0] if group == "*" else getattr(model, group)
    if last not in type(model).model_fields:  # of another loss than the profile's
        return float | None
    field = type(model).model_fields[last]
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def offered() -> dict[str, str]:
    """Profiles that have a form, by its name: the shipped ones and that of KLEAR_FORM_PROFILE."""
    extra = load_machine().form_profile
    return {**{p: p for p in profiles()}, **({Path(extra).stem: extra} if extra else {})}


def __getattr__(name: str) -> Flow[..., str]:
    profile = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and profile in offered():
        return form(profile)
    if name == "pipeline":
        return whole_form()
    raise AttributeError(name)


@cache
def whole_form() -> Flow[..., str]:
    """The flow behind the form of every setting of a profile, which `klear run` starts too where
    no form is registered. Made when it is asked for: Prefect reads all settings."""

    def pipeline(
        until: StageName = "report",
        force: list[StageName] = [],  # noqa: B006
        verify: bool = False,
        *,
        settings: Pipeline,
    ) -> str:
        return run_pipeline(settings, until, force, verify)

    def called() -> str:
        return typed_name() or run_name(Pipeline.model_validate(flow_run.parameters["settings"]))

    return _flow(pipeline, "pipeline", ABOUT, called)


def _flow(
    run: Callable[..., str], name: str, about: str, called: Callable[[], str]
) -> Flow[..., str]:
    """One that a worker finds under its name in this module."""
    run.__name__ = run.__qualname__ = name
    run.__module__, run.__doc__ = __name__, about
    return Flow(interrupts_as_cancelled(run), name="klear", flow_run_name=called)


@cache
def form(profile: str) -> Flow[..., str]:
    """The flow behind the short form of one profile; KeyError if there is none."""
    path = offered()[profile]

    def asked(changes: str, seed: int, until: str, force: list, verify: bool, **fields: Any) -> Any:
        return settings_of(path, fields, changes, seed), until, force, verify

    def run(**parameters: Any) -> str:
        return run_pipeline(*asked(**parameters))

    def called() -> str:
        """The name that was typed in the form, else profile, seed and what differs."""
        with suppress(ConfigError):  # the run says what is wrong
            return typed_name() or run_name(asked(**flow_run.parameters)[0], load_profile(path))
        return profile

    abouts = [f"    {n}: {h['about']}." for n, h in read_catalogue("headlines").items()]
    run.__signature__ = inspect.Signature(_fields(path))  # type: ignore[attr-defined]
    return _flow(run, f"{PREFIX}{profile}", "\n".join([ABOUT, *abouts]), called)


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


ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*offered()]})]


def _name() -> str:
    """The name that was typed in the form, else `tiny-seed0 · sft · sft.epochs=2, as of …`."""
    asked = flow_run.parameters
    lines = _lines(asked["changes"]) + asked["other_inputs"].split()
    changed = ", ".join(first_few([short(line) for line in lines]))
    of = "" if asked["inputs_as_of"] == LATEST else f"as of {asked['inputs_as_of']}"
    parts = f"{asked['profile']}-seed{asked['seed']}", asked["stage"], changed, of
    return typed_name() or " · ".join(filter(None, parts))


def idle_lines(profile: str, stage: str, changes: str, seed: int) -> list[str]:
    """The changes that do nothing in the stage: they are of the stages before it."""
    lines = [x for x in _lines(changes) if not x.startswith(("stall_minutes", "topology"))]

    def asked(lines: Sequence[str]) -> tuple[Any, Any]:
        with suppress(ConfigError):
            whole = settings_of(profile, {}, "\n".join(lines), seed)
            return whole, calls(whole).get(stage)
        return None, None

    whole, call = asked(lines)
    without = {line: asked([x for x in lines if x != line]) for line in lines}
    return [line for line, (other, own) in without.items() if other != whole and own == call]


@flow(name="klear", flow_run_name=_name)
@interrupts_as_cancelled
def stage(
    profile: ProfileName = "tiny",
    stage: StageName = "report",
    changes: str = "",
    inputs_as_of: str = LATEST,
    other_inputs: str = "",
    mixed: bool = False,
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0,
    force: bool = False,
) -> str:
    """One stage of a profile on the results of a complete run. Returns its result's folder.

    Args:
        profile: Whose settings, unless changed.
        stage: The one to run.
        changes: Settings of this stage that differ from the profile's, a line as `sft.epochs=2`.
        inputs_as_of: Whose results it takes: `latest`, the last complete run of profile and seed;
            the name or id of another; or a result, `report/0a1b2c`, and what it was made from.
        other_inputs: Results that it takes instead, one a line as `evaluate_sft=0a1b2c`.
        mixed: Allow inputs that do not belong together; the page says which.
        seed: Of every random stage.
        force: Compute even if the store has this result.
    """
    whole = settings_of(offered()[profile], {}, changes, seed)
    graph = calls(whole)
    if stage not in graph:
        raise ConfigError([f"stage: the profile {whole.profile} has no {stage}"])
    call, store = graph[stage], open_store(load_machine())
    taken = chosen(call.inputs, inputs_as_of, whole, other_inputs, store)
    if idle := idle_lines(offered()[profile], stage, changes, seed):
        fix = "run the stage that it changes, and name its result in other_inputs"
        raise ConfigError(f"changes: {line} changes nothing in {stage}; {fix}" for line in idle)
    strangers = provenance_conflicts(store, [*taken.values()])
    if strangers and not mixed:
        said = "; ".join(strangers)
        raise ConfigError([f"inputs: of different runs: {said}. Tick mixed if that is meant"])
    keys = {name: f"{m.stage}/{m.key}" for name, m in taken.items()}
    said = {"stage": stage, "inputs": keys, "settings": call.settings.model_dump(mode="json")}
    meaning = json.dumps([stage, key_of(call.settings), seed, [m.digest for m in taken.values()]])
    asked = {"resolved": {**said, "seed": seed}, "force": frozenset({stage} if force else ())}
    asked |= {"mixed": tuple(strangers)}
    with run_context(run_spec(whole, "stage", meaning, **asked)) as run:
        made = {name: usable(run.store, m) for name, m in taken.items()}
        banner = "\n".join(f"> **Mixed**: {line}\n" for line in strangers)
        of = f"`{stage}` of {', '.join(f'`{key}`' for key in keys.values())}" if keys else ""
        publish_plan(plan(whole, run, asked=[call], made=made), run, f"{banner}\n{of}")
        result = compute_one(call, *made.values())
        run.store.fetch(result)
        run.tracker.log(run.run_id, result.metrics)
        show_markdown("klear-result", f"{banner}\n{_summary(result)}\n\n{of}")
        return str(result.folder)


def _summary(result: Artifact) -> str:
    """The page that the stage wrote, or its figures."""
    page = result.folder / "report.md"
    if page.exists():
        return with_inline_plots(page.read_text(), result.folder)
    lines = [f"| {literal(n)} | {number(n, v)} |" for n, v in result.metrics.items()]
    return "\n".join([f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])


def usable(store: Store, result: Manifest) -> Artifact:
    """The result with its files here; raises ConfigError where they are gone or damaged."""
    artifact, wrong = store.find(result.stage, result.key)
    if artifact is None:
        raise ConfigError([f"inputs: {result.stage}/{result.key}: {wrong or 'it is gone'}"])
    store.fetch(artifact)
    return artifact


def chosen(
    needed: Sequence[str], which: str, settings: Pipeline, others: str, store: Store
) -> dict[str, Manifest]:
    """The results that a stage takes, by stage: those of the run that `which` means, but for the
    lines `stage=key` of `others`. Raises ConfigError with what there is."""
    pairs = (line.partition("=") for line in others.split())
    found = {stage: find_by_prefix(store, stage, digits) for stage, _, digits in pairs}
    if unknown := [*(found.keys() - {*needed})]:
        raise ConfigError([f"inputs: {unknown[0]} is not taken; the stage takes {needed}"])
    if missing := [name for name in needed if name not in found]:
        run = ancestry(store, resolve_run(store, which, settings.profile, settings.seed))
        if lost := [name for name in missing if name not in run]:
            raise ConfigError([f"{which} has no {', '.join(lost)}, only {', '.join(run)}"])
        found |= {name: run[name] for name in missing}
    return {name: found[name] for name in needed}
