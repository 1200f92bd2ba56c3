"""What a run would reuse, resume and compute, why, and what it will take."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.settings.pipeline import Pipeline
from configs.settings.topology import Assumptions, Topology
from configs.stage_names import STAGES
from flows.cli.quantities import amount, duration, short_count, size
from flows.stages import calls, plan_stages
from tasks.planning.plan import PlannedStage, Planner
from tasks.stage.run import Run
from tasks.store.store import Store
from training.sizing.fit import Fit, check

NOT_MEASURED = "–"
ASSUMED = "≈"
_STYLE = {"reuse": "cyan", "resume": "yellow", "compute": "green"}
_WORDS = ("stage", "action", "why")
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "time": ("seconds", duration),
    "tokens": ("tokens", short_count),
    "GPU-hours": ("gpu_hours", amount),
    "disk": ("bytes", size),
    "cost": ("cost", amount),
}
"""Column of the plan → figure of a planned stage, and how it is written."""
_NARROWEST_WHY = 32
Lines = list[tuple[str, str]]


class Plan(list[PlannedStage]):
    """The stages of a run in order, with the machines they are planned for."""

    def __init__(
        self, stages: Iterable[PlannedStage], topology: Topology, fits: Sequence[Fit] = ()
    ) -> None:
        super().__init__(stages)
        self.topology, self.fits = topology, tuple(fits)

    @property
    def problems(self) -> list[str]:
        """Why the machines cannot run it, a line each."""
        return [f"{fit.stage}: {problem}" for fit in self.fits for problem in fit.problems]


def plan(
    settings: Pipeline, store: Store, force: Sequence[str] = (), until: str = STAGES[-1]
) -> Plan:
    """The stages of a run of `settings` in order. Reads the store; starts nothing."""
    run = Run(store=store, seed=settings.seed, force=frozenset(force))
    planner = Planner(run, settings.topology, settings.base)
    stages = plan_stages(calls(settings).values(), planner, until)
    return Plan(stages, settings.topology, fits_of(settings, stages))


def fits_of(settings: Pipeline, stages: Iterable[PlannedStage]) -> list[Fit]:
    """Memory and divisors of those of the planned stages that use GPUs."""
    planned = {name for s in stages for name in (s.stage, s.stage.partition("_")[0])}
    return [fit for fit in check(settings) if fit.stage in planned]


def rows(stages: Sequence[PlannedStage]) -> list[dict[str, str]]:
    """The plan as a table of texts; columns in which nothing is known are left out."""
    figures = {
        column: [_text(s, figure, written) for s in stages]
        for column, (figure, written) in _FIGURES.items()
    }
    shown = {n: v for n, v in figures.items() if n in ("time", "disk") or {*v} - {NOT_MEASURED}}
    return [
        {"stage": s.stage, "action": s.action, "why": s.why, **{n: v[i] for n, v in shown.items()}}
        for i, s in enumerate(stages)
    ]


def _text(stage: PlannedStage, figure: str, written: Callable[[float], str]) -> str:
    value = getattr(stage, figure)
    if value is None:
        return NOT_MEASURED
    return (ASSUMED if figure in stage.assumed else "") + written(value)


def headline(stages: Sequence[PlannedStage]) -> str:
    """How much is reused, and what the rest takes, one stage after the other."""
    counts = Counter(s.action for s in stages)
    todo = [s for s in stages if s.action != "reuse"]
    text = ", ".join(f"{counts[a]} to {a}" for a in ("reuse", "resume", "compute") if counts[a])
    if not todo:
        return f"{text}: a run takes seconds"
    sums = {f: sum(getattr(s, f) or 0.0 for s in todo) for f, _ in _FIGURES.values()}
    units = {"tokens": " tokens", "GPU-hours": " GPU-hours", "disk": " of disk"}
    known = [
        f"{'cost ' if column == 'cost' else ''}{written(sums[figure])}{units.get(column, '')}"
        for column, (figure, written) in _FIGURES.items()
        if sums[figure]
    ]
    if known:
        text += f"; {ASSUMED if any(s.assumed for s in todo) else 'about '}{', '.join(known)}"
    if unmeasured := [s.stage for s in todo if s.seconds is None]:
        text += f"; never measured here and not counted: {', '.join(unmeasured)}"
    return text


def assumptions(stages: Plan) -> Lines:
    """(`name = value`, what it means and which stages rest on it) of every assumption."""
    users: dict[str, list[str]] = {}
    for s in stages:
        for name in s.assumptions:
            users.setdefault(name, []).append(s.stage)
    values = stages.topology.assume
    return [
        (f"{name} = {getattr(values, name):,}", f"{field.description} ({', '.join(users[name])})")
        for name, field in Assumptions.model_fields.items()
        if name in users
    ]


def _basis(stages: Sequence[PlannedStage]) -> Iterator[tuple[str, Lines]]:
    """What the figures rest on: title and lines of each part that has any."""
    plan = stages if isinstance(stages, Plan) else Plan(stages, Topology())
    counted: dict[str, list[str]] = {}
    for s in plan:
        if s.action != "reuse" and s.how:
            counted.setdefault(s.how, []).append(s.stage)
    taken = assumptions(plan)
    if plan.topology.gpus or taken:
        yield "How it was counted", [(", ".join(names), text) for text, names in counted.items()]
    if plan.fits:
        fits = [(fit.stage, line) for fit in plan.fits for line in fit.lines]
        yield f"{plan.topology}; memory in GiB a GPU", fits
    if taken:
        yield f"Assumptions ({ASSUMED}); change one with --set topology.assume.NAME=VALUE", taken
    if plan.problems:
        yield "These machines cannot run it", [("", problem) for problem in plan.problems]


def summary(stages: Sequence[PlannedStage]) -> str:
    """The headline and what it rests on, as Markdown."""
    parts = [
        "\n".join(
            [
                f"**{title}**",
                *(f"- {name}: {text}" if name else f"- {text}" for name, text in lines),
            ]
        )
        for title, lines in _basis(stages)
    ]
    return "\n\n".join([headline(stages), *parts])


def print_plan(stages: Sequence[PlannedStage], console: Console | None = None) -> None:
    """One line a stage, the sum of what is left to do, and what it rests on. Figures go into a
    table of their own where one is too wide for the terminal."""
    console = console or Console()
    lines = rows(stages)
    figures = [n for n in (lines[0] if lines else {}) if n not in _WORDS]
    widths = [max(len(n), *(len(r[n]) for r in lines)) + 2 for n in ("stage", "action", *figures)]
    narrow = console.width < sum(widths) + 2 + _NARROWEST_WHY
    for columns in (_WORDS, ("stage", *figures)) if narrow else ((*_WORDS, *figures),):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            words = name in _WORDS
            table.add_column(
                name, justify="left" if words else "right", overflow="fold", no_wrap=not words
            )
        for row in lines:
            style = _STYLE[row["action"]]
            table.add_row(*(Text(row[n], style if n == "action" else "") for n in columns))
        console.print(table)
    console.print(headline(stages), highlight=False)
    for title, basis in _basis(stages):
        console.print(Text(f"\n{title}", "bold"))
        grid = Table.grid(padding=(0, 2), pad_edge=False)
        grid.add_column(overflow="fold", max_width=console.width * 2 // 5)
        grid.add_column(overflow="fold")
        for name, text in basis:
            grid.add_row(Text(name), Text(text))
        console.print(grid)
