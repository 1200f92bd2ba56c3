"""`klear plan PROFILE`: what a run would reuse, resume and compute, why, and what it will take."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from configs.assumptions import UNMEASURED, Assumptions
from configs.settings import Pipeline
from configs.stage_names import STAGES
from configs.topology import Topology
from flows.quantities import amount, duration, short_count, size
from flows.stages import run_stages
from tasks.forecast import NO_PRICE
from tasks.plan import PlannedStage, Planner
from tasks.run import Run, StoppedEarly, active
from tasks.store import Store
from training.fit import Fit, check

NOT_MEASURED = "–"
ASSUMED = "≈"
ASSUME = "topology.assume.NAME"
MOST_NAMED = 4


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
    planner = Planner(settings.topology, settings.base)
    run = Run(store=store, seed=settings.seed, force=frozenset(force), until=until, planner=planner)
    with active(run), suppress(StoppedEarly):
        run_stages(settings)
    return Plan(planner.stages, settings.topology, fits_of(settings, planner.stages))


def fits_of(settings: Pipeline, stages: Iterable[PlannedStage]) -> list[Fit]:
    """Memory and divisors of those of the planned stages that use GPUs."""
    planned = {name for s in stages for name in (s.stage, s.stage.partition("_")[0])}
    return [fit for fit in check(settings) if fit.stage in planned]


def rows(stages: Sequence[PlannedStage]) -> list[dict[str, str]]:
    """The plan as a table of texts; columns in which nothing is known are left out."""
    table = [
        {
            "stage": s.stage,
            "action": s.action,
            "why": s.why,
            "time": _text(s, "seconds", duration),
            "tokens": _text(s, "tokens", short_count),
            "GPU-hours": _text(s, "gpu_hours", amount),
            "disk": _text(s, "bytes", size),
            "cost": _text(s, "cost", amount),
        }
        for s in stages
    ]
    empty = {n for n in ("tokens", "GPU-hours", "cost") if {r[n] for r in table} <= {NOT_MEASURED}}
    return [{n: v for n, v in row.items() if n not in empty} for row in table]


def _text(stage: PlannedStage, figure: str, shown: Callable[[float], str]) -> str:
    value = getattr(stage, figure)
    if value is None:
        return NOT_MEASURED
    return (ASSUMED if figure in stage.assumed else "") + shown(value)


def headline(stages: Sequence[PlannedStage]) -> str:
    """How much is reused, and what the rest takes, one stage after the other."""
    counts = Counter(s.action for s in stages)
    todo = [s for s in stages if s.action != "reuse"]
    text = ", ".join(f"{counts[a]} to {a}" for a in ("reuse", "resume", "compute") if counts[a])
    if not todo:
        return f"{text}: a run takes seconds"
    known = [s for s in todo if s.seconds is not None]
    if known:
        about = ASSUMED if any(s.basis == "assumed" for s in known) else "about "
        text += f"; {about}{', '.join(_totals(known))}"
        text += _by_what(known)
    unpriced = [s.stage for s in known if s.how.endswith(NO_PRICE)]
    if unpriced:
        text += f"; no price for the tokens of {', '.join(unpriced)}"
    unmeasured = [s.stage for s in todo if s.seconds is None]
    if unmeasured:
        text += f"; never measured here and not counted: {', '.join(unmeasured)}"
    return text


def _totals(known: Sequence[PlannedStage]) -> list[str]:
    def total(name: str) -> float:
        return sum(getattr(s, name) or 0.0 for s in known)

    found = [duration(total("seconds"))]
    if total("tokens"):
        found.append(f"{short_count(total('tokens'))} tokens")
    if total("gpu_hours"):
        found.append(f"{amount(total('gpu_hours'))} GPU-hours")
    if total("bytes"):
        found.append(f"{size(total('bytes'))} of disk")
    if total("cost"):
        found.append(f"cost {amount(total('cost'))}")
    return found


def _by_what(known: Sequence[PlannedStage]) -> str:
    assumed = sum(s.basis == "assumed" for s in known)
    if not assumed:
        return " by rates measured in this store"
    if assumed == len(known):
        return f" by assumptions ({ASSUMED})"
    return (
        f" ({len(known) - assumed} stages by measured rates, {assumed} with assumptions: {ASSUMED})"
    )


def assumptions(stages: Sequence[PlannedStage]) -> list[tuple[str, str]]:
    """(`name = value`, what it means, where it is from, what rests on it and which stages use it)
    of every assumption of the plan."""
    values = stages.topology.assume if isinstance(stages, Plan) else Assumptions()
    users: dict[str, list[str]] = {}
    for s in stages:
        for name in s.assumptions:
            users.setdefault(name, []).append(s.stage)
    return [
        (f"{n} = {getattr(values, n):,}", f"{_meaning(n, values, stages)}: {_some(users[n])}")
        for n in Assumptions.model_fields
        if n in users
    ]


def _meaning(name: str, values: Assumptions, stages: Sequence[PlannedStage]) -> str:
    """The description; of what the profile or the command line states, that it does; of a rate
    that nobody measured, why, and what half and double of it mean for the time of the plan."""
    field = Assumptions.model_fields[name]
    own = getattr(values, name) != field.default
    reason = "stated for these machines" if own else UNMEASURED.get(name, "")
    text = f"{field.description}; {reason}" if reason else f"{field.description}"
    seconds = sum(t for s in stages for rate, t in s.rests if rate == name)
    if not seconds or not (own or reason):
        return text
    least, most = duration(seconds / 2), duration(seconds * 2)
    return f"{text}; {duration(seconds)} rest on it, {most} at half of it, {least} at double"


def _some(stages: Sequence[str]) -> str:
    if len(stages) <= MOST_NAMED:
        return ", ".join(stages)
    return f"{', '.join(stages[: MOST_NAMED - 1])} and {len(stages) - MOST_NAMED + 1} more"


def explained(stages: Sequence[PlannedStage]) -> bool:
    """Whether the arithmetic is worth reading: machines are named, or something was assumed."""
    return isinstance(stages, Plan) and bool(stages.topology.gpus or assumptions(stages))


def summary(stages: Sequence[PlannedStage]) -> str:
    """The headline, how each stage was counted, the memory and every assumption, as Markdown."""
    parts = [headline(stages)]
    if isinstance(stages, Plan) and stages.topology.gpus:
        parts.append(f"**Machines**: {stages.topology}")
    if isinstance(stages, Plan) and stages.problems:
        parts.append("\n".join(["**Cannot run as it is:**", *(f"- {p}" for p in stages.problems)]))
    if explained(stages):
        counted = how(stages)
        lines = [f"- `{names}`: {text}" for names, text in counted]
        parts.append("\n".join(["**How it was counted**", *lines]))
    if isinstance(stages, Plan) and stages.fits:
        lines = [f"- `{fit.stage}`: {line}" for fit in stages.fits for line in fit.lines]
        parts.append("\n".join(["**Fits** (GiB a GPU)", *lines]))
    if taken := assumptions(stages):
        lines = [f"- `{name}`: {meaning}" for name, meaning in taken]
        parts.append("\n".join([f"**Assumptions** ({ASSUMED}, `{ASSUME}`)", *lines]))
    return "\n\n".join(parts)


def how(stages: Sequence[PlannedStage]) -> list[tuple[str, str]]:
    """(stages, arithmetic) of what is to be computed, equal lines together."""
    found: dict[str, list[str]] = {}
    for s in stages:
        if s.action != "reuse" and s.how:
            found.setdefault(s.how, []).append(s.stage)
    return [(", ".join(names), text) for text, names in found.items()]


def print_plan(stages: Sequence[PlannedStage]) -> None:
    """The table, what it adds up to, and all that the figures rest on."""
    from flows.plan_page import print_page  # rich: only where there is a terminal

    print_page(stages)
