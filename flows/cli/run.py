"""`klear run` and `klear plan`: a profile, carried out or only looked at."""

import os
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from configs.loading import load_profile, run_name
from configs.machine import Machine, load_machine
from configs.settings.explain import ConfigError
from configs.settings.pipeline import Pipeline
from configs.stage_names import StageName
from flows.servers.prefect_api import ServersError
from flows.servers.servers import are_up


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What to run."""

    overrides: Annotated[tuple[str, ...], Parameter("--set")] = ()
    """Change one setting: --set sft.epochs=2, --set data.root=FOLDER (repeatable)."""
    force: tuple[StageName, ...] = ()
    """Recompute this stage even if its result is in the store (repeatable)."""
    until: StageName = "report"
    """Stop after this stage."""
    seed: int | None = None
    """Seed of every random stage."""
    approve_cost: Annotated[float | None, Parameter(validator=Number(gte=0))] = None
    """What a stage that asks a paid engine may spend (engine.runtime.approve_above)."""

    def settings_of(self, profile: str) -> Pipeline:
        """The profile with its overrides; raises ConfigError."""
        seed = () if self.seed is None else (f"seed={self.seed}",)
        settings = load_profile(profile, [*self.overrides, *seed])
        if left_out := sorted(settings.stages_left_out & {*self.force, self.until}):
            raise ConfigError(
                f"{s} is no stage of the profile {settings.profile}" for s in left_out
            )
        return settings


NO_OPTIONS = Options()


def plan(profile: str, /, *, options: Options = NO_OPTIONS) -> int:
    """What a run would reuse, resume and compute, why, and what it takes. Needs no server.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
    """
    settings = options.settings_of(profile)
    machine = prepare_plan()
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
    return run_shown(
        f"klear run {settings.profile} (seed {settings.seed})",
        lambda: named(options.until, list(options.force), verify, settings=settings),
        has_report=options.until == "report",
    )


def prepare_plan() -> Machine:
    """This machine, with what Prefect reads when it is imported."""
    machine = load_machine()
    machine.make_home()  # Prefect makes its own folder in it
    os.environ.update(machine.environment())
    return machine


def prepare_run() -> None:
    """The environment of a flow in this process, before Prefect and MLflow are imported.

    Raises ServersError where no servers would track it.
    """
    machine = load_machine()
    if not are_up(machine):
        raise ServersError("the servers are not up: run `klear up` first")
    os.environ.update(machine.environment())
    # The display says it all in one line a stage; Prefect's page of the run keeps every log line.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # Nor that an event did not arrive: it is sent again with the next one.
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
