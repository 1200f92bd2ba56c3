"""`klear run` and `klear plan`: a profile, carried out or only looked at."""

import os
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from configs.loading import load_profile, run_name
from configs.machine import load_machine
from configs.settings.explain import ConfigError, nearest
from configs.settings.pipeline import Pipeline
from configs.stage_names import STAGES


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What to run."""

    overrides: Annotated[tuple[str, ...], Parameter("--set")] = ()
    """Change one setting: --set sft.epochs=2, --set data.root=FOLDER (repeatable)."""
    force: tuple[str, ...] = ()
    """Recompute this stage even if its result is in the store (repeatable)."""
    until: str = STAGES[-1]
    """Stop after this stage."""
    seed: int | None = None
    """Seed of every random stage."""
    approve_cost: float | None = None
    """What a stage that asks a paid engine may spend (engine.runtime.approve_above)."""

    def settings_of(self, profile: str) -> Pipeline:
        """The profile with its overrides; every wrong option is one line of the same error."""
        seed = () if self.seed is None else (f"seed={self.seed}",)
        wanted = (*(("--force", stage) for stage in self.force), ("--until", self.until))
        problems = [
            f"{option} {name}: no such stage{nearest(name, STAGES) or f'; one of {STAGES}'}"
            for option, name in wanted
            if name not in STAGES
        ]
        if self.approve_cost is not None and not 0 <= self.approve_cost < float("inf"):
            problems.append(f"--approve-cost {self.approve_cost}: not an amount, zero or more")
        try:
            settings = load_profile(profile, [*self.overrides, *seed])
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from error
        left_out = sorted(settings.stages_left_out & {*self.force, self.until})
        problems += [f"{s} is no stage of the profile {settings.profile}" for s in left_out]
        if problems:
            raise ConfigError(problems)
        return settings


NO_OPTIONS = Options()


def plan(profile: str, /, *, options: Options = NO_OPTIONS) -> int:
    """What a run would reuse, resume and compute, why, and what it takes. Needs no server.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
    """
    settings, machine = options.settings_of(profile), load_machine()
    machine.make_home()  # Prefect makes its own folder in it
    os.environ.update(machine.environment())
    from flows.cli.plan import plan, print_plan
    from tasks.store.shared import open_store

    planned = plan(settings, open_store(machine), options.force, options.until)
    print_plan(planned)
    return 1 if planned.problems else 0


def run(profile: str, /, *, options: Options = NO_OPTIONS, verify: bool = False) -> int:
    """Run a profile; finished stages are reused.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
        verify: Reuse a result only if every byte is what was published (reads the whole store).
    """
    settings = options.settings_of(profile)
    prepare_run()
    from flows.cli.display import run_shown
    from flows.forms.approval import approve_all
    from flows.pipeline import pipeline

    if options.approve_cost is not None:
        settings = approve_all(settings, options.approve_cost)
    name = run_name(settings, load_profile(profile))
    named = pipeline.with_options(flow_run_name=lambda: name)
    force, until = list(options.force), options.until
    return run_shown(
        f"klear run {settings.profile} (seed {settings.seed})",
        lambda: named(until, force, verify, settings=settings),  # type: ignore[arg-type]
        has_report=until == STAGES[-1],
    )


def prepare_run() -> None:
    """The environment of a flow in this process, before Prefect and MLflow are imported.

    Raises ServersError where no servers would track it.
    """
    from flows.servers.servers import ServersError, are_up

    machine = load_machine()
    if not are_up(machine):
        raise ServersError("the servers are not up: run `klear up` first")
    os.environ.update(machine.environment())
    # The display says it all in one line a stage; Prefect's page of the run keeps every log line.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # Nor that an event did not arrive: it is sent again with the next one.
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
