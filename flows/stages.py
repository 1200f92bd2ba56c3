"""Every stage of a run, what it takes and from whom: the README's figure, line by line.

`calls` is the one place that knows. A plan looks at the calls, a run computes them, the form of a
stage asks for one, and an ablation takes those that its score needs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from ..configs.settings.base import Settings, layered
from ..configs.settings.data import SampleSettings
from ..configs.settings.evaluation import ReportSettings
from ..configs.settings.pipeline import STAGES, Pipeline
from ..configs.settings.training import with_launch
from ..tasks.answers.difficulty import difficulty
from ..tasks.answers.distill import distill
from ..tasks.answers.filter_rl import filter_rl
from ..tasks.answers.judge import judge
from ..tasks.answers.select import select
from ..tasks.data.collect import collect
from ..tasks.data.decontaminate import decontaminate
from ..tasks.data.dedup import dedup
from ..tasks.data.filter_tests import filter_tests
from ..tasks.engine.scheduler import Node, run_graph
from ..tasks.engine.stage import Stage
from ..tasks.models.evaluate import evaluate
from ..tasks.models.train import base, rl, sft
from ..tasks.report.report import report
from ..tasks.store.store import Artifact
from ..training.sizing import refuse

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Call:
    """One stage as a run calls it; `inputs` name the stages whose results it takes, in order."""

    stage: Stage
    inputs: tuple[str, ...]
    settings: Settings

    def compute(self, *inputs: Artifact) -> Artifact:
        """The result, reused or computed."""
        return self.stage(*inputs, settings=self.settings)


def calls(s: Pipeline) -> dict[str, Call]:
    """Every stage of a run of `s` by its name, in the order of the run."""
    takes = {n: ("collect",) for n, own in s if isinstance(own, SampleSettings)
             and own.engine.origin == "catalogue"}  # fmt: skip
    raters = {"model": ("rate", "judge_rate"), "published": ("collect",)}
    rated = raters.get(s.difficulty.rater, ("distill", "judge"))
    passed = "collect" if s.filter_rl.pass_rates == "published" else "judge_rl"
    models = [n for n in ("base", "sft", "rl_math", "rl_code") if n not in s.stages_left_out]
    before = dict(zip(models[1:], models, strict=False))
    trains_tokenizer = s.base.kind == "random" and "sft" in models
    trained = {"rl_math": s.rl_math, "rl_code": s.rl_code}
    no_curve = s.evaluate.model_copy(update={"learning_curve": None})  # it is part of the key
    curve = {n: s.evaluate for n, settings in trained.items() if settings.keep_every}
    every = [
        # Problems in, training sets out (§3.1, §3.2.1).
        Call(collect, (), s.collect),
        Call(collect.named("benchmarks"), (), s.benchmarks),
        Call(dedup, ("collect",), s.dedup),
        Call(decontaminate, ("dedup", "benchmarks"), s.decontaminate),
        Call(distill, ("decontaminate", *takes.get("distill", ())), s.distill),
        Call(judge, ("decontaminate", "distill"), s.judge),
        Call(distill.named("rate"), ("decontaminate", *takes.get("rate", ())), s.rate or s.distill),
        Call(judge.named("judge_rate"), ("decontaminate", "rate"), s.judge),
        Call(difficulty, ("decontaminate", *rated), s.difficulty),
        Call(select, ("decontaminate", "distill", "judge", "difficulty"), s.select),
        Call(filter_tests, ("decontaminate",), s.filter_tests),
        Call(distill.named("sample"), ("filter_tests", *takes.get("sample", ())), s.sample),
        Call(judge.named("judge_rl"), ("filter_tests", "sample"), s.judge_rl),
        Call(filter_rl, ("filter_tests", passed), s.filter_rl),
        # Recorded answers whose grades are published: the report lists every disagreement.
        Call(distill.named("agreement"), ("benchmarks",), s.agreement or s.distill),
        Call(judge.named("judge_agreement"), ("benchmarks", "agreement"), s.judge),
        # Base model → long-CoT SFT → math RL → code RL (§4.1), each from the model before it.
        Call(base, ("select",) if trains_tokenizer else (), s.base),
        Call(sft, ("base", "select"), with_launch(s.sft, s.topology)),
        *(
            Call(rl.named(n), (before.get(n, "base"), "filter_rl"), with_launch(own, s.topology))
            for n, own in trained.items()
        ),
        # Every checkpoint on every benchmark: avg@k with a confidence interval (§4).
        *(
            Call(evaluate.named(f"evaluate_{n}"), (n, "benchmarks"), curve.get(n, no_curve))
            for n in models
        ),
    ]
    found = {c.stage.name: c for c in every if c.stage.name not in s.stages_left_out}
    # The report reads checks and scores last, as its page shows them.
    shown = sorted(found, key=lambda n: (n.startswith("evaluate_"), n.endswith("agreement")))
    return {**found, "report": Call(report, tuple(shown), ReportSettings(profile=s.profile))}


def needed(target: str, graph: dict[str, Call]) -> list[Call]:
    """The stages that `target` is made from and itself, in the order of the run."""
    wanted = {target}
    for name, call in reversed(graph.items()):  # a stage comes after its inputs
        wanted.update(call.inputs if name in wanted else ())
    return [call for name, call in graph.items() if name in wanted]


def compute(asked: Iterable[Call], until: str = "") -> dict[str, Artifact]:
    """The results of the stages up to `until`, by name; the independent ones run side by side."""
    graph: dict[str, Node[Artifact]] = {}
    for call in asked:
        judges = call.stage.body is judge.body
        graph[call.stage.name] = Node(call.inputs, call.compute, every_core=judges)
        if call.stage.name == until:
            break
    return run_graph(graph)


def compute_one(call: Call, *inputs: Artifact) -> Artifact:
    """The result of one stage, in a thread as those of a run: there it is watched."""
    name = call.stage.name
    return run_graph({name: Node((), lambda: call.compute(*inputs))})[name]


def run_stages(s: Pipeline, until: str = STAGES[-1]) -> dict[str, Artifact]:
    """The results of a run by the names of their stages, up to `until`. Raises DoesNotFit before
    the first stage when the topology's machines cannot run one of them."""
    refuse(s, STAGES[: STAGES.index(until) + 1])
    return compute(calls(s).values(), until)


def approved(settings: S, cost: float) -> S:
    """The settings of a stage that asks an engine, with `cost` approved: no part of its key."""
    change = {"engine": {"runtime": {"approved_cost": cost}}}
    return type(settings).model_validate(layered(settings.model_dump(), change))


def approve_all(pipeline: Pipeline, cost: float) -> Pipeline:
    """Approve up to `cost` for each stage that asks an engine (`klear run --approve-cost`)."""
    asking = {n: approved(s, cost) for n, s in pipeline if isinstance(s, SampleSettings)}
    return pipeline.model_copy(update=asking)
