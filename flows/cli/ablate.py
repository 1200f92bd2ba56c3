"""`klear ablate`: the paper's tables and figures, as experiments one can repeat."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from configs.settings.ablation import ablations, load_ablation
from flows.cli.run import prepare_plan, prepare_run, run_shown

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
        store = prepare_plan()
        from tasks.ablation.results import write_results

        specs = [spec for one in ablations() if profile in (spec := load_ablation(one)).scales]
        done = write_results(store, RESULTS, profile, specs)
        print(f"wrote {RESULTS} and the lines beside it: {done} of {len(specs)} experiments")
        return 0
    if not name:
        for known in ablations():
            spec = load_ablation(known)
            print(f"{known:22} {spec.shows:9} {spec.title} ({', '.join(spec.scales)})")
        return 0
    spec = load_ablation(name)
    spec.scale(profile)
    seeds = seeds or spec.seeds
    if plan:
        store = prepare_plan()
        from flows.ablation import plan_ablation
        from flows.cli.plan import print_plan

        print_plan(plan_ablation(spec, profile, seeds, store))
        return 0
    prepare_run()
    from flows.ablation import ablation

    title = f"klear ablate {name} ({profile}, {seeds} seeds)"
    return run_shown(title, lambda: ablation(name, profile, seeds, concurrent))
