"""`klear ablate`: the paper's tables and figures, as experiments one can repeat."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from configs.machine import load_machine
from configs.settings.ablation import ablations, load_ablation
from flows.cli.run import prepare_run

RESULTS = Path("configs/ablations/RESULTS.md")
Count = Annotated[int, Parameter(validator=Number(gte=1))]


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
    if results:
        return _results(RESULTS, profile)
    if not name:
        for known in ablations():
            spec = load_ablation(known)
            print(f"{known:22} {spec.shows:9} {spec.title} ({', '.join(spec.scales)})")
        return 0
    spec = load_ablation(name)
    spec.scale(profile)
    seeds = seeds or spec.seeds
    if plan:
        machine = load_machine()
        machine.make_home()  # Prefect makes its own folder in it
        os.environ.update(machine.environment())
        from flows.ablations.ablation import plan_ablation
        from flows.cli.plan import print_plan
        from tasks.store.shared import open_store

        print_plan(plan_ablation(spec, profile, seeds, open_store(machine)))
        return 0
    prepare_run()
    from flows.ablations.ablation import ablation
    from flows.cli.display import run_shown

    title = f"klear ablate {name} ({profile}, {seeds} seeds)"
    return run_shown(title, lambda: ablation(name, profile, seeds, concurrent))


def _results(path: Path, profile: str) -> int:
    """The page, and beside it (.jsonl) what it is made of: that of other stores counts as well."""
    from tasks.ablation.finished import (
        best,
        cost_of,
        newest,
        read_finished,
        united,
        write_finished,
    )
    from tasks.ablation.pages import Experiment, results_page
    from tasks.store.shared import open_store

    store, beside = open_store(load_machine()), path.with_suffix(".jsonl")
    specs = [spec for name in ablations() if profile in (spec := load_ablation(name)).scales]
    here = [f for spec in specs if (f := newest(store, spec, profile))]
    known = united([*here, *read_finished(beside)])
    found = [best(spec, profile, *known) for spec in specs]
    finished = [f for f in found if f]
    experiments = [
        Experiment(spec, f.outcome, cost_of([f]), f.made) if f else Experiment(spec)
        for spec, f in zip(specs, found, strict=True)
    ]
    page = results_page(profile, experiments, cost_of(finished))
    path.write_text(page.markdown(), encoding="utf-8")
    write_finished(beside, known)
    print(f"wrote {path} and {beside.name}: {len(finished)} of {len(specs)} experiments")
    return 0
