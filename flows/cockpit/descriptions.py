"""What the page of a form says before Submit: what it does, what it needs, how long it takes."""

import inspect
from collections.abc import Callable
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from ...configs.loading import PROFILES, load_profile, named_file
from ...configs.machine import Machine
from ...configs.settings.pipeline import SAMPLERS, Pipeline
from ..plan import last_plan


def with_links(text: str, machine: Machine) -> str:
    """A description, and where to go from it."""
    reports = f"[reports and plots]({machine.prefect_url}/artifacts)"
    return f"{text}\n\n[MLflow]({machine.mlflow_page}) · {reports}"


def of_profile(profile: str) -> str:
    """What its file says, what it needs, and how long it takes."""
    file = named_file(PROFILES, "profile", profile)
    advice = "Nobody has planned it on this machine: tick plan_only to see how long it takes."
    time = f"Last plan: {last}" if (last := last_plan(file.stem)) else advice
    facts = f"Needs {needs(load_profile(profile))}. {time}"
    return "\n\n".join([*paragraphs(file), facts])


def of_ablations(form: Callable[..., Any]) -> str:
    """Each experiment, with its last plan."""
    from ...configs.ablation import ablations, load_ablation  # which a run does without

    lines = [first_paragraph(form), ""]
    for name in ablations():
        spec, last = load_ablation(name), last_plan(f"{name} tiny")
        time = f" (tiny: {last})" if last else ""
        lines.append(f"- `{name}`: {spec.shows}, {spec.title}{time}")
    return "\n".join(lines)


def first_paragraph(form: Callable[..., Any]) -> str:
    """Of the docstring of a flow."""
    return " ".join((inspect.getdoc(form) or "").partition("\n\n")[0].split())


def paragraphs(profile: Path) -> list[str]:
    """The comment at the head of a profile's file; its examples of commands stay lines."""
    comment = takewhile(lambda line: line.startswith("#"), profile.open(encoding="utf-8"))
    lines = [line.rstrip()[1:].removeprefix(" ") for line in comment]
    blocks = [[*block] for full, block in groupby(lines, bool) if full]
    return [
        "\n".join(block) if any(x.startswith(("    ", "- ")) for x in block) else " ".join(block)
        for block in blocks
    ]


def needs(settings: Pipeline) -> str:
    """What a profile cannot run without, in words."""
    t, engines = settings.topology, {n: getattr(settings, n) for n in SAMPLERS}
    endpoints = [n for n, s in engines.items() if s and s.engine.kind == "openai"]
    hub = any(source.kind == "hub" for source in settings.collect.sources)
    parts = [
        f"{t.gpus} {t.gpu}" if t.gpus else "no GPU",
        f"the weights of {settings.base.model}" if settings.base.kind == "pretrained" else "",
        "its datasets, by the network or in data.root" if hub else "",
        f"an endpoint ({', '.join(endpoints)})" if endpoints else "",
    ]
    return "; ".join(filter(None, parts))
