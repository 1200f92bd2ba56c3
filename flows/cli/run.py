"""`klear run`, `plan` and `ablate`: carried out or only looked at; a run in the terminal."""

import gc
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.markup import escape

from ...configs.loading import load_profile, run_name
from ...configs.machine import load_machine
from ...configs.settings.explain import ConfigError
from ...configs.settings.pipeline import Pipeline, StageName
from ...tasks.report.run_story import duration
from ..servers.servers import ServersError, why_down

SUSPENDED = "suspended in the Prefect UI; after Resume a worker goes on"
INTERRUPTED = 130  # exit code, as shells have it of Ctrl-C


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
            wrong = f"is no stage of the profile {settings.profile}"
            raise ConfigError(f"{stage} {wrong}" for stage in left_out)
        return settings


NO_OPTIONS = Options()
Count = Annotated[int, Parameter(validator=Number(gte=1))]
RESULTS = Path("configs/ablations/RESULTS.md")


def plan(profile: str, /, *, options: Options = NO_OPTIONS) -> int:
    """What a run would reuse, resume and compute, why, and what it takes. Needs no server.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
    """
    settings = options.settings_of(profile)
    store = prepare_plan()
    from ...tasks.engine.run import Run
    from ..plan import plan, print_plan

    force = frozenset(options.force)
    planned = plan(settings, Run(store=store, seed=settings.seed, force=force), options.until)
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
    from prefect.context import SyncClientContext
    from prefect.flow_engine import run_flow

    from ..forms.forms import form, offered, parameters_of, whole_form
    from ..stages import approve_all

    asked = {"until": options.until, "force": list(options.force), "verify": verify}
    told = parameters_of(profile, options.overrides, seed=settings.seed, **asked)
    name = run_name(settings, load_profile(profile))
    short = next((name for name, path in offered().items() if path == profile), "")

    def start() -> str:
        whole = settings
        if options.approve_cost is not None:
            whole = approve_all(settings, options.approve_cost)
        elif short and (made := flow_run_of_form(short, name, told)):
            of_form: Any = run_flow  # its types know of no flow that is no coroutine
            return of_form(form(short), flow_run=made)
        named = whole_form().with_options(flow_run_name=lambda: name)
        return named(options.until, list(options.force), verify, settings=whole)

    with SyncClientContext():  # one client, and one reading of certificates, for all of it
        return run_shown(f"klear run {settings.profile} (seed {settings.seed})", start)


def flow_run_of_form(form: str, name: str, parameters: dict[str, Any]) -> Any:
    """What the short form of a profile would start, so that its page has Retry and "Copy to new
    run" as any other; None where no worker has registered the form with this Prefect."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    # Pending: a worker takes those that are scheduled
    about: Any = {"parameters": parameters, "name": name, "state": Pending()}
    with get_client(sync_client=True) as client, suppress(ObjectNotFound):
        there = client.read_deployment_by_name(f"klear/{form}")
        return client.create_flow_run_from_deployment(there.id, **about)


def prepare_plan() -> Any:
    """This machine's store, and the environment that Prefect reads when it is imported."""
    machine = load_machine()
    machine.home.mkdir(parents=True, exist_ok=True)  # Prefect makes its own folder in it
    os.environ.update(machine.environment())
    from ...tasks.store.shared import open_store

    return open_store(machine)


def prepare_run() -> None:
    """The environment of a flow in this process, before Prefect and MLflow are imported. Raises
    ServersError where no servers would track it."""
    machine = load_machine()
    if wrong := why_down(machine):
        raise ServersError(wrong)
    os.environ.update(machine.environment())
    # The display says it all in one line a stage, Prefect's page of the run keeps every log line,
    # and an event that did not arrive is sent again with the next one.
    for logs in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{logs}", "CRITICAL")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    gc.disable()  # what is imported stays: looking for garbage in it takes a tenth of the start
    import klear.flows.pipeline  # noqa: F401

    gc.freeze()
    gc.enable()


def links_text(links: Mapping[str, str]) -> str:
    return "".join(f"  {name:8} {address}\n" for name, address in links.items() if address)


def run_shown(title: str, flow: Callable[[], str]) -> int:
    """Run a flow that returns a folder; print what was computed, what was reused, what it came to
    and where to look. 0 done, 1 failed or cancelled, 130 Ctrl-C."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    for client in ("httpx", "httpx2"):  # openai speaks through the second one
        logging.getLogger(client).setLevel(logging.WARNING)
    # Not wrapped: a path in two lines cannot be copied.
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, style="bold")
    from ...tasks.observe.terminal import Terminal

    display = Terminal(console)
    try:
        # Prefect's own heartbeat has a run wait for a second at its end; see
        # `watch_cancel_requests`.
        with display, temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            where = flow()
    except BaseException as error:
        from prefect.exceptions import CancelledRun, Pause

        from ...tasks.observe.prefect import CTRL_C

        said = str(error) or type(error).__name__
        if isinstance(error, Pause):
            said = SUSPENDED
        elif type(error) is KeyboardInterrupt:  # before or after the flow, which ends as Cancelled
            said = CTRL_C
        ended = isinstance(error, (CancelledRun, KeyboardInterrupt, Pause))
        console.print(("" if ended else "[red]failed:[/] ") + escape(said))
        console.print(links_text(display.links) + "The same command continues from here.")
        return INTERRUPTED if said == CTRL_C else 1
    computed, cached = display.counts["computed"], display.counts["cached"]
    counts = f"{computed} stage{'s' * (computed > 1)} computed, {cached} cached"
    what = counts if computed else f"every stage cached ({cached})"
    console.print(f"done in {duration(time.time() - psutil.Process().create_time())}: {what}")
    if display.summary:
        from rich.markdown import Markdown

        Console(highlight=False).print(Markdown(display.summary))
    page = Path(where, "report.html")
    result = {"report": str(page)} if page.exists() else {"result": where}
    console.print(links_text({**result, **display.links}), end="")
    return 0


def ablate(
    name: str = "",
    /,
    *,
    profile: str = "tiny",
    seeds: Count | None = None,
    concurrent: Count = 1,
    plan: bool = False,
    results: bool = False,
) -> int:
    """Repeat a table or figure of the paper, with intervals.

    Args:
        name: An experiment, or a file of one's own; none: list all.
        profile: The scale to run it at.
        seeds: Runs an arm; default: as the file says.
        concurrent: Runs at once; what they share is computed once.
        plan: Only print what it would compute.
        results: Write one page of what all experiments found so far, configs/ablations/RESULTS.md.
    """
    from ...configs.ablation import ablations, load_ablation

    if results:
        store = prepare_plan()
        from ...tasks.ablation.results import write_results

        specs = [spec for one in ablations() if profile in (spec := load_ablation(one)).scales]
        done = write_results(store, RESULTS, profile, specs)
        print(f"wrote {RESULTS} and the lines beside it: {done} of {len(specs)} experiments")
        return 0
    if not name:
        for known in ablations():
            spec = load_ablation(known)
            print(f"{known:22} {spec.shows:24} {spec.title} ({', '.join(spec.scales)})")
        return 0
    spec = load_ablation(name)
    spec.scale(profile)
    if plan:
        store = prepare_plan()
        from ..ablation import plan_ablation
        from ..plan import print_plan

        print_plan(plan_ablation(spec, profile, seeds, store))
        return 0
    prepare_run()
    from ..ablation import ablation

    title = f"klear ablate {name} ({profile}, {seeds or spec.seeds} seeds)"
    return run_shown(title, lambda: ablation(name, profile, seeds, concurrent))
