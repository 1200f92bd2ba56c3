"""What a run would reuse, resume and compute, why, and what it will take."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Self

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from ..configs.files import replace_text
from ..configs.machine import load_machine
from ..configs.settings.base import first_few
from ..configs.settings.pipeline import Pipeline
from ..configs.settings.topology import Assumptions, Topology
from ..tasks.data.sources import GOLDS
from ..tasks.engine.run import Run
from ..tasks.planning.plan import ASSUMED as RESTS
from ..tasks.planning.plan import ROWS, Planner
from ..tasks.planning.work import SAVED
from ..tasks.report.figures import number
from ..tasks.report.page import render
from ..tasks.report.run_story import PlannedStage, duration, size
from ..tasks.store.hardware import gpus
from ..tasks.store.store import Artifact
from ..training.sizing import DoesNotFit, Fit, check
from .dag import StageCall, build_dag, upstream_of

NOT_MEASURED, ASSUMED = "–", "≈"
_ACTIONS = {"reuse": "cyan", "resume": "yellow", "compute": "green"}
_WORDS = ("stage", "action", "why")


def tokens(count: float) -> str:
    """`37.5 G`."""
    return size(count).removesuffix("B").rstrip()


_FIGURES: dict[str, tuple[str, Callable[[float], str], str]] = {
    "time": ("seconds", duration, "{}"),
    "tokens": ("tokens", tokens, "{} tokens"),
    "GPU-hours": ("gpu_hours", partial(number, ""), "{} GPU-hours"),
    "disk": ("bytes", size, "{} of disk"),
    "cost": ("cost", partial(number, ""), "cost {}"),
}
"""Column of the plan → figure of a planned stage, how it is written, and how their sum is."""


class Plan(list[PlannedStage]):
    """The stages of a run in order, with the machines they are planned for, and the name of the
    profile or the experiment that they are all the stages of."""

    def __init__(
        self,
        stages: Iterable[PlannedStage],
        topology: Topology,
        fits: Sequence[Fit] = (),
        name: str = "",
    ) -> None:
        super().__init__(stages)
        self.topology, self.fits, self.name = topology, tuple(fits), name

    def kept(self, changed: Sequence[tuple[str, str]] = ()) -> Self:
        """Itself; where it is of a whole profile (which was `changed`) or experiment, what it came
        to is kept for the description of its form (`last_plan`)."""
        if self.name and any(stage.action != "reuse" for stage in self):
            line, _, way = (
                summary(self).partition("\n")[0].partition(" of time on the critical path")
            )
            beside = " with stages beside each other" if way else ""
            changes = ", ".join(first_few([f"{name}={value}" for name, value in changed]))
            text = f"{date.today()}{' with ' * bool(changes)}{changes}: {line}{beside}."
            replace_text(_kept(self.name), text)
        return self

    @property
    def problems(self) -> list[str]:
        """Why the machines cannot run it, a line each."""
        return [f"{fit.stage}: {problem}" for fit in self.fits for problem in fit.problems]


def plan(
    settings: Pipeline,
    run: Run,
    until: str = "report",
    *,
    calls: Iterable[StageCall] = (),
    results: Mapping[str, Artifact] = {},
) -> Plan:
    """What `run` would do of `settings` for `until`, or of these calls alone; `results` are of
    stages that are not among them. Reads the store and starts nothing."""
    planner, expected = Planner(run, settings.topology, settings.base), dict(results)
    for call in calls or upstream_of(until, build_dag(settings)):
        inputs = tuple(expected[name] for name in call.inputs)
        expected[call.stage.name] = planner.plan_stage(call.stage, inputs, call.settings)
    stages, name = planner.stages, "" if calls or until != "report" else settings.profile
    return Plan(stages, settings.topology, check(settings, [s.stage for s in stages]), name)


def rows(stages: Sequence[PlannedStage]) -> list[dict[str, str]]:
    """The plan as a table of texts; columns in which nothing is known are left out. What a reused
    result took stands in brackets: it is spent, and no part of what the run will take."""
    columns = {n: f for n, f in _FIGURES.items()
               if any(getattr(s, f[0]) is not None for s in stages)}  # fmt: skip
    table = []
    for s in stages:
        why = "; ".join(filter(None, (s.why, s.binds)))
        row = {"stage": s.stage, "action": s.action, "why": why, "rows": NOT_MEASURED}
        for column, (figure, written, _) in columns.items():
            value, mark = getattr(s, figure), ASSUMED if s.assumed else ""
            text = NOT_MEASURED if value is None else mark + written(value)
            row[column] = f"({text})" if s.action == "reuse" and value is not None else text
        count = next((n for name in ROWS if (n := s.counts.get(name)) is not None), nan)
        if not isnan(count):  # else nobody can tell
            row["rows"] = f"{ASSUMED if s.counts.get(RESTS, 0.0) else ''}{count:,.0f}"
        table.append(row)
    return table


def critical_path(stages: Sequence[PlannedStage]) -> tuple[float, list[str]]:
    """(seconds until the last stage ends, the stages to compute that decide it), where those that
    do not need each other run beside each other, and on GPUs one after the other."""
    ends: dict[str, tuple[float, list[str]]] = {}
    on_gpus: tuple[float, list[str]] = (0.0, [])
    for s in stages:
        before = [ends[name] for name in s.inputs if name in ends]
        end = max([*before, on_gpus] if s.gpu_hours else before, default=(0.0, []))
        if s.action != "reuse":
            end = end[0] + (s.seconds or 0.0), [*end[1], s.stage]
        ends[s.stage], on_gpus = end, end if s.gpu_hours else on_gpus
    return max(ends.values(), default=(0.0, []))


def assumptions(stages: Plan) -> list[tuple[str, str]]:
    """(`name = value`, what it means and which stages rest on it) of every assumption."""
    return [
        (f"{name} = {'none' if value is None else f'{value:,}'}", f"{field.description} ({users})")
        for name, field in Assumptions.model_fields.items()
        for value in (getattr(stages.topology.assume, name),)
        if (users := ", ".join(dict.fromkeys(s.stage for s in stages if name in s.assumptions)))
    ]


def summary(stages: Plan) -> str:
    """What the stages that are not reused take, and what the figures rest on, as Markdown."""
    todo = [s for s in stages if s.action != "reuse"]
    unmeasured = dict.fromkeys(s.stage for s in todo if s.seconds is None and not s.unknown)
    never = f"{', '.join(unmeasured)} (never measured)" if unmeasured else ""
    counts = Counter(s.action for s in stages)
    seconds, way = critical_path(stages)
    several = len({s.stage for s in stages}) < len(stages)  # runs: of an ablation
    shorter = seconds < sum(s.seconds or 0.0 for s in todo) and not several
    return render(
        "plan.md",
        path=(duration(seconds), way, unmeasured.keys() & {*way}) if shorter else None,
        counts={action: counts[action] for action in _ACTIONS if counts[action]},
        todo=todo,
        never=never,
        sums=[
            " + ".join(filter(None, [pattern.format(written(total)) if total else "", more]))
            for figure, written, pattern in _FIGURES.values()
            for more in (never if figure == "seconds" else "",)
            if (total := sum(getattr(s, figure) or 0.0 for s in todo)) or more
        ],
        saved=[(s.stage, tokens(n)) for s in todo if (n := s.counts.get(SAVED, 0.0)) > 0],
        golds=[
            (s.stage, *(f"{mark}{s.counts.get(kind, 0.0):,.0f}" for kind in GOLDS))
            for s in stages
            if any(s.counts.get(kind) for kind in GOLDS)
            for mark in (ASSUMED if s.counts.get(RESTS) else "",)
        ],
        plan=stages,
        assumptions=assumptions(stages),
        prices=[(s.stage, s.prices) for s in stages if s.prices],
    ).rstrip()


def refuse_without_gpu(stages: Plan) -> None:
    """Raise DoesNotFit where what is left to do needs GPUs and this machine, on which it would run,
    has none."""
    t, launched = stages.topology, load_machine().ray_address
    elsewhere = t.nodes > 1 or launched or t.launcher in ("ray", "slurm")
    if elsewhere or not t.gpus or gpus() or shutil.which("nvidia-smi"):
        return
    on_gpus = tuple(fit.stage for fit in stages.fits)
    needing = [s.stage for s in stages if s.action != "reuse" and s.stage.startswith(on_gpus)]
    if needing:
        fix = "run it on a machine that has one, or set topology.gpus_per_node=0 to try without"
        names = ", ".join(dict.fromkeys(needing))
        raise DoesNotFit(f"{names}: planned for {t.gpus} {t.gpu}; this machine has no GPU: {fix}")


def _kept(name: str) -> Path:
    return load_machine().home / "plans" / f"{name}.txt"


def last_plan(name: str) -> str:
    """What the last plan of a profile (`tiny`) or an experiment (`losses tiny`) came to; '' where
    nobody planned it on this machine."""
    return _kept(name).read_text(encoding="utf-8") if _kept(name).exists() else ""


def print_plan(stages: Plan) -> None:
    """What each stage does and why, what it takes, the sum of what is left to do, and what it
    rests on. Two tables: a terminal of 80 columns holds no longer line."""
    console, lines = Console(), rows(stages)
    for columns in (_WORDS, [n for n in lines[0] if n not in _WORDS[1:]]):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            justify = "left" if name in _WORDS else "right"
            table.add_column(name, justify=justify, no_wrap=name != "why", overflow="fold")
        for row in lines:
            style = {"action": _ACTIONS[row["action"]]}
            table.add_row(*(Text(row[n], style.get(n, "")) for n in columns))
        console.print(table)
    console.print(Markdown(summary(stages)))
