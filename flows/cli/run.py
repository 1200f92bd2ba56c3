"""`klear run`, `plan` and `ablate`: carried out or only looked at; a run in the terminal."""

import gc
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.markup import escape

from ...configs.loading import Request, profiles, read_profile
from ...configs.machine import load_machine
from ...configs.settings.data import SampleSettings
from ...configs.settings.explain import ConfigError
from ...configs.settings.pipeline import StageName
from ...tasks.report.run_story import duration
from ..cockpit.forms import values_of
from ..cockpit.servers import ServersError, why_down

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
    """Compute this stage and what it is made from."""
    seed: int | None = None
    """Seed of every random stage."""
    approve_cost: Annotated[float | None, Parameter(validator=Number(gte=0))] = None
    """What a stage that asks a paid engine may spend (engine.runtime.approve_above)."""

    def request(self, profile: str) -> Request:
        """The profile with its overrides; raises ConfigError."""
        if long := [text.partition("=")[0] for text in self.overrides if "\n" in text.strip()]:
            raise ConfigError(f"{name}: write the value in one line" for name in long)
        seed = () if self.seed is None else (f"seed={self.seed}",)
        request = Request.from_profile(read_profile(profile), [*self.overrides, *seed])
        request.refuse_left_out(self.until, *self.force)
        return request


NO_OPTIONS = Options()
Count = Annotated[int, Parameter(validator=Number(gte=1))]
RESULTS = Path("configs/ablation_results/RESULTS.md")


def plan(profile: str, /, *, options: Options = NO_OPTIONS) -> int:
    """What a run would reuse, resume and compute, why, and what it takes. Needs no server.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
    """
    request = options.request(profile)
    settings = request.settings
    store = prepare_plan()
    from ...tasks.engine.run import Run
    from ..plan import plan, print_plan

    force = frozenset(options.force)
    planned = plan(settings, Run(store=store, seed=settings.seed, force=force), options.until)
    print_plan(planned.kept(request.changed))
    return 1 if planned.problems else 0


def run(profile: str, /, *, options: Options = NO_OPTIONS, verify: bool = False) -> int:
    """Run a profile; finished stages are reused.

    Args:
        profile: tiny, single_gpu, paper, … or the path of a .yaml file.
        verify: Reuse a result only if every byte is what was published (reads the whole store).
    """
    request = options.request(profile)
    parameters = parameters_of(profile, request, options) | {"verify": verify}
    prepare_run()
    from ..cockpit import flows

    title = f"klear run {request.settings.profile} (seed {request.settings.seed})"
    form, name = Path(profile).stem, flows.pipeline_name(parameters, request.name)
    return run_shown(title, partial(flows.start, flows.pipeline, parameters, form, name))


def rerun(
    run: str,
    stage: StageName,
    /,
    *,
    overrides: Annotated[tuple[str, ...], Parameter("--set")] = (),
    force: bool = False,
    mixed: bool = False,
) -> int:
    """Run one stage of a complete run again, on that run's results.

    Args:
        run: Its name or id, as `klear status` and Prefect show them, or latest.
        stage: The stage to run.
        overrides: Change one setting of this stage (repeatable).
        force: Recompute it even if its result is in the store.
        mixed: Allow settings and inputs of different runs.
    """
    prepare_run()
    from ...tasks.store.lineage import find_run
    from ...tasks.store.shared import open_store
    from ..cockpit import flows
    from ..run import lines_by_stage

    complete = find_run(open_store(load_machine()), run)
    profile, seed = complete.source or complete.profile, complete.seed
    request = Request.from_profile(read_profile(profile), [*complete.overrides, f"seed={seed}"])
    request.file.pipeline([*request.overrides, *overrides])  # refused before anything starts
    changes = [*lines_by_stage(request).get(stage, ()), *overrides]
    parameters = {"profile": profile, "stage": stage, "changes": "\n".join(changes), "seed": seed}
    parameters |= {"inputs_as_of": complete.flow_run, "force": force, "mixed": mixed}
    return run_shown(
        f"klear rerun {complete.name}: {stage}",
        lambda: flows.start(flows.stage, parameters, "stage", flows.stage_name(parameters)),
    )


def parameters_of(profile: str, request: Request, options: Options) -> dict[str, Any]:
    """The form of a profile as somebody would fill it in for this command: its fields as the
    profile has them, the options as changes."""
    changes = [*options.overrides]
    if options.approve_cost is not None:
        approval = f"runtime.approved_cost={options.approve_cost:g}"
        for stage, settings in request.settings:
            if isinstance(settings, SampleSettings):
                changes.append(f"{stage}.engine.{approval}")
                changes += [f"{stage}.fallback.{approval}"] if settings.fallback else []
    return {
        **values_of(request.profile),
        "profile": profile if profile in profiles() else str(Path(profile).expanduser().absolute()),
        "changes": "\n".join(changes),
        "until": options.until,
        "force": [*options.force],
        "seed": request.settings.seed,
    }


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
    from ..cockpit import flows  # noqa: F401

    gc.freeze()
    gc.enable()


def links_text(links: Mapping[str, str]) -> str:
    return "".join(f"  {name:8} {address}\n" for name, address in links.items() if address)


def run_shown(title: str, flow: Callable[[], str]) -> int:
    """Run a flow that returns a folder; print what was computed, what was reused, what it came to
    and where to look. 0 done, 1 failed or cancelled, 130 Ctrl-C."""
    for client in ("httpx", "httpx2"):  # openai speaks through the second one
        logging.getLogger(client).setLevel(logging.WARNING)
    # Not wrapped: a path in two lines cannot be copied.
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, style="bold")
    from ...tasks.observe.terminal import Terminal

    display = Terminal(console)
    try:
        with display:
            folder = flow()
    except BaseException as error:
        from ..cockpit.flows import CTRL_C, ending

        message = escape(ending(error))
        console.print(message or f"[red]failed:[/] {escape(str(error) or type(error).__name__)}")
        console.print(links_text(display.links) + "The same command continues from here.")
        return INTERRUPTED if message == CTRL_C else 1
    computed, cached = display.counts["computed"], display.counts["cached"]
    counts = f"{computed} stage{'s' * (computed > 1)} computed, {cached} cached"
    outcome = counts if computed else f"every stage cached ({cached})"
    console.print(f"done in {duration(time.time() - psutil.Process().create_time())}: {outcome}")
    if display.summary:
        from rich.markdown import Markdown

        Console(highlight=False).print(Markdown(display.summary))
    page = Path(folder, "report.html")
    result = {"report": str(page)} if page.exists() else {"result": folder}
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
        results: Write the page of all experiments, configs/ablation_results/RESULTS.md.
    """
    from ...configs.ablation import ablations, load_ablation

    if results:
        store = prepare_plan()
        from ...tasks.ablation.results import write_results

        specs = [spec for one in ablations() if profile in (spec := load_ablation(one)).scales]
        done = write_results(store, RESULTS, profile, specs)
        print(f"wrote {RESULTS}, its lines and its picture: {done} of {len(specs)} experiments")
        return 0
    if not name:
        for experiment in ablations():
            spec = load_ablation(experiment)
            print(f"{experiment:22} {spec.shows:24} {spec.title} ({', '.join(spec.scales)})")
        return 0
    spec = load_ablation(name)
    spec.scale(profile)
    if plan:
        store = prepare_plan()
        from ..ablation import plan_ablation
        from ..plan import print_plan

        print_plan(plan_ablation(spec, profile, seeds, store).kept())
        return 0
    prepare_run()
    from ..cockpit import flows

    title = f"klear ablate {name} ({profile}, {seeds or spec.seeds} seeds)"
    parameters = {"name": name, "profile": profile, "seeds": seeds or 0, "concurrent": concurrent}
    return run_shown(title, partial(flows.start, flows.ablation, parameters))
