"""Results of one experiment, published as its last stage would, with the runs they are made of."""

from collections.abc import Sequence

from configs.settings.ablation import Ablation, load_ablation
from tasks.ablation.finished import JUDGE, RESULTS, Finished, newest
from tasks.ablation.outcome import Cell, Outcome, outcome_of
from tasks.store.care import ABLATE, ABLATE_VERSION
from tasks.store.store import InputRef, Store

SPEC = load_ablation("table6_lm_weight")


def outcome(seeds: int, score: float = 0.6) -> Outcome:
    def cell(arm: str, seed: int) -> Cell:
        level = score if arm == "α=0.1" else 0.4
        means = {f"p{i}": level for i in range(10)}
        return Cell(arm, seed, dict.fromkeys(SPEC.scale("tiny").benchmarks, means), {})

    cells = [cell(arm.name, seed) for arm in SPEC.arms for seed in range(seeds)]
    return outcome_of(SPEC, "tiny", cells)


def published(
    store: Store,
    key: str,
    seeds: int,
    created: str,
    spec: Ablation = SPEC,
    inputs: Sequence[InputRef] = (),
    score: float = 0.6,
    version: int = ABLATE_VERSION,
) -> None:
    work = store.work(ABLATE + SPEC.name, key)
    work.mkdir(parents=True)
    (work / RESULTS).write_text(outcome(seeds, score).model_dump_json())
    settings = {"ablation": spec.model_dump(mode="json"), "profile": "tiny"}
    store.publish(work, stage=ABLATE + SPEC.name, version=version, key=key, settings=settings,
                  inputs=inputs, seconds=1.0, pipeline_run="r", created=created)  # fmt: skip


def ranked(store: Store, grader: int, seeds: int) -> Finished:
    """A result of scores that this grader judged."""
    work = store.work(JUDGE, f"j{grader}")
    work.mkdir(parents=True)
    made = store.publish(work, stage=JUDGE, version=grader, key=f"j{grader}", settings={},
                         seconds=1.0, pipeline_run="r", created="2026")  # fmt: skip
    ref = InputRef(stage=JUDGE, key=made.key, digest=made.digest)
    published(store, f"g{grader}", seeds, f"2026-01-0{grader}", inputs=(ref,))
    (found,) = [f for f in [newest(store, SPEC, "tiny")] if f]
    return found
