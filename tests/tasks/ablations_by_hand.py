"""Results of one experiment, published as its last stage would, with the runs they are made of."""

from collections.abc import Sequence

from configs.ablation import Ablation, load_ablation
from eval.ablation_outcome import Outcome, outcome_of
from eval.ablation_results import Cell
from tasks.ablation_outcomes import JUDGE, RESULTS, Finished, newest
from tasks.store import InputRef, Store
from tasks.store_care import ABLATE, ABLATE_VERSION
from tests.eval.evaluations_by_hand import evaluation, result

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
    cells: Sequence[tuple[str, int]] = (),
) -> None:
    work = store.work(ABLATE + SPEC.name, key)
    work.mkdir(parents=True)
    (work / RESULTS).write_text(outcome(seeds, score).model_dump_json())
    settings = {"ablation": spec.model_dump(mode="json"), "profile": "tiny",
                "cells": [list(cell) for cell in cells]}  # fmt: skip
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


def cell_of(store: Store, arm: str, seed: int) -> list[InputRef]:
    """An evaluation and a model of one cell, published; α=0.1 is right on every problem."""
    number = [a.name for a in SPEC.arms].index(arm)
    refs, key = [], f"arm{number}-seed{seed}"
    for stage in ("evaluate_rl_math", "rl_math"):
        work = store.work(stage, key)
        work.mkdir(parents=True)
        if stage == "evaluate_rl_math":
            benchmarks = SPEC.scale("tiny").benchmarks
            verdict = "AC" if arm == "α=0.1" else "WA"
            evaluation(
                work,
                [result(name, 1) for name in benchmarks],
                [(name, name, None) for name in benchmarks],
                {(name, 0): verdict for name in benchmarks},
            )
        else:
            (work / "weights").write_text(key)
        made = store.publish(work, stage=stage, version=1, key=key, settings={},
                             seconds=1.0, pipeline_run="r", created="2026")  # fmt: skip
        refs.append(InputRef(stage=stage, key=made.key, digest=made.digest))
    return refs
