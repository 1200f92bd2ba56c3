"""`klear ablate`: the paper's tables and figures, as experiments one can repeat."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from configs.settings.ablation import ablations, load_ablation
from flows.cli.run import prepare_plan, prepare_run

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
        return _write_results(RESULTS, profile)
    if not name:
        for known in ablations():
            spec = load_ablation(known)
            print(f"{known:22} {spec.shows:9} {spec.title} ({', '.join(spec.scales)})")
        return 0
    spec = load_ablation(name)
    spec.scale(profile)
    seeds = seeds or spec.seeds
    if plan:
        machine = prepare_plan()
        from flows.ablation import plan_ablation
        from flows.cli.plan import print_plan
        from tasks.store.shared import open_store

        print_plan(plan_ablation(spec, profile, seeds, open_store(machine)))
        return 0
    prepare_run()
    from flows.ablation import ablation
    from flows.cli.display import run_shown

    title = f"klear ablate {name} ({profile}, {seeds} seeds)"
    return run_shown(title, lambda: ablation(name, profile, seeds, concurrent))


def _write_results(path: Path, profile: str) -> int:
    """The page, and beside it (.jsonl) what it is made of: that of other stores counts as well."""
    machine = prepare_plan()
    from tasks.ablation import finished
    from tasks.ablation.pages import Experiment, results_page
    from tasks.store.shared import open_store

    store, beside = open_store(machine), path.with_suffix(".jsonl")
    specs = [spec for name in ablations() if profile in (spec := load_ablation(name)).scales]
    here = [found for spec in specs if (found := finished.newest(store, spec, profile))]
    known = finished.united([*here, *finished.read_finished(beside)])
    best = [(spec, finished.best(spec, profile, *known)) for spec in specs]
    experiments = [
        Experiment(spec, f.outcome, finished.cost_of([f]), f.made) if f else Experiment(spec)
        for spec, f in best
    ]
    done = [f for _, f in best if f]
    page = results_page(profile, experiments, finished.cost_of(done))
    path.write_text(page.markdown(), encoding="utf-8")
    finished.write_finished(beside, known)
    print(f"wrote {path} and {beside.name}: {len(done)} of {len(specs)} experiments")
    return 0
