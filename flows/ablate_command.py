"""`klear ablate`: the paper's tables and figures, as experiments one can repeat."""

import argparse
import os
from pathlib import Path

OK, FAILED = 0, 1
RESULTS = "configs/ablations/RESULTS.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No name lists the experiments."""
    parser.add_argument(
        "name", nargs="?", default="", help="an experiment, or a file of one's own; none: list all"
    )
    parser.add_argument("--profile", default="tiny", help="the scale to run it at (%(default)s)")
    parser.add_argument("--seeds", type=_count, help="runs an arm (default: as the file says)")
    at_once = "runs at once (%(default)s); what they share is computed once"
    parser.add_argument("--concurrent", type=_count, default=1, metavar="N", help=at_once)
    parser.add_argument("--plan", action="store_true", help="only print what it would compute")
    parser.add_argument(
        "--results",
        nargs="?",
        const=RESULTS,
        metavar="FILE",
        help="write one page of what all experiments found so far (%(const)s)",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Exit code: 1 when the runs failed, else 0. Raises ConfigError, ServersError."""
    from configs.ablation import ablations, load_ablation
    from configs.load import ConfigError

    if arguments.results:
        if Path(arguments.results).suffix != ".md":
            raise ConfigError([f"--results {arguments.results}: the page is Markdown, FILE.md"])
        return _results(Path(arguments.results), arguments.profile)
    if not arguments.name:
        for name in ablations():
            spec = load_ablation(name)
            print(f"{name:22} {spec.shows:9} {spec.title} ({', '.join(spec.scales)})")
        return OK
    spec = load_ablation(arguments.name)
    spec.scale(arguments.profile)
    seeds = arguments.seeds or spec.seeds
    if arguments.plan:
        return _plan(arguments.name, arguments.profile, seeds)
    return _run(arguments.name, arguments.profile, seeds, arguments.concurrent)


def _results(path: Path, profile: str) -> int:
    """The page, and beside it (.jsonl) what it is made of: that of other stores counts as well."""
    from configs.ablation import ablations, load_ablation
    from configs.machine import load_machine
    from eval.ablation_table import Experiment, results_page
    from eval.page_markdown import to_markdown
    from tasks.ablation_outcomes import (
        best,
        cost_of,
        newest,
        read_finished,
        united,
        write_finished,
    )
    from tasks.shared_store import open_store

    store, beside = open_store(load_machine()), path.with_suffix(".jsonl")
    specs = [spec for name in ablations() if profile in (spec := load_ablation(name)).scales]
    here = [f for spec in specs if (f := newest(store, spec, profile))]
    known = united([*here, *read_finished(beside)])
    found = [best(spec, profile, *known) for spec in specs]
    finished = [f for f in found if f]
    page = results_page(
        profile,
        [
            Experiment(spec, f.outcome, cost_of([f]), f.made) if f else Experiment(spec)
            for spec, f in zip(specs, found, strict=True)
        ],
        cost_of(finished),
    )
    path.write_text(to_markdown(page), encoding="utf-8")
    write_finished(beside, known)
    print(f"wrote {path} and {beside.name}: {len(finished)} of {len(specs)} experiments")
    return OK


def _plan(name: str, profile: str, seeds: int) -> int:
    from configs.machine import load_machine

    machine = load_machine()
    machine.home.mkdir(parents=True, exist_ok=True)  # Prefect makes its own folder in it
    os.environ.update(machine.environment())
    from configs.ablation import load_ablation
    from flows.ablation import plan_ablation
    from flows.plan import print_plan
    from tasks.shared_store import open_store

    print_plan(plan_ablation(load_ablation(name), profile, seeds, open_store(machine)))
    return OK


def _run(name: str, profile: str, seeds: int, concurrent: int) -> int:
    from configs.machine import load_machine
    from flows.servers import ServersError, are_up

    machine = load_machine()
    if not are_up(machine):
        raise ServersError("the servers are not up: run `klear up` first")
    os.environ.update(machine.environment())  # before Prefect and MLflow are imported
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    from flows.ablation import ablation
    from flows.run import run_shown

    return run_shown(
        f"klear ablate {name} ({profile}, {seeds} seeds)",
        lambda: ablation(name, profile, seeds, concurrent),
    )
