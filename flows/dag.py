"""Every stage of a run, what it takes and from whom: the README's figure, line by line.

`build_dag` is the one place that knows. A plan looks at its calls, a run computes them, the form of
a stage picks one, and an ablation takes those that its score needs.
"""

from dataclasses import dataclass

from ..configs.settings.base import Settings
from ..configs.settings.data import SampleSettings
from ..configs.settings.evaluation import ReportSettings
from ..configs.settings.pipeline import Pipeline
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
from ..tasks.engine.stage import Stage
from ..tasks.models.evaluate import evaluate
from ..tasks.models.train import base, rl, sft
from ..tasks.report.report import report

Dag = dict[str, "StageCall"]
"""The calls of a run by the names of their stages; a stage comes after its inputs."""


@dataclass(frozen=True)
class StageCall:
    """One stage as a run calls it; `inputs` name the stages whose results it takes, in order."""

    stage: Stage
    inputs: tuple[str, ...]
    settings: Settings


def build_dag(s: Pipeline) -> Dag:
    """Every stage of a run of `s`, in the order of the run."""
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
    calls = [
        # Problems in, training sets out (§3.1, §3.2.1).
        StageCall(collect, (), s.collect),
        StageCall(collect.named("benchmarks"), (), s.benchmarks),
        StageCall(dedup, ("collect",), s.dedup),
        StageCall(decontaminate, ("dedup", "benchmarks"), s.decontaminate),
        StageCall(distill, ("decontaminate", *takes.get("distill", ())), s.distill),
        StageCall(judge, ("decontaminate", "distill"), s.judge),
        StageCall(distill.named("rate"), ("decontaminate", *takes.get("rate", ())),
                  s.rate or s.distill),
        StageCall(judge.named("judge_rate"), ("decontaminate", "rate"), s.judge),
        StageCall(difficulty, ("decontaminate", *rated), s.difficulty),
        StageCall(select, ("decontaminate", "distill", "judge", "difficulty"), s.select),
        StageCall(filter_tests, ("decontaminate",), s.filter_tests),
        StageCall(distill.named("sample"), ("filter_tests", *takes.get("sample", ())), s.sample),
        StageCall(judge.named("judge_rl"), ("filter_tests", "sample"), s.judge_rl),
        StageCall(filter_rl, ("filter_tests", passed), s.filter_rl),
        # Recorded answers whose grades are published: the report lists every disagreement.
        StageCall(distill.named("agreement"), ("benchmarks",), s.agreement or s.distill),
        StageCall(judge.named("judge_agreement"), ("benchmarks", "agreement"), s.judge),
        # Base model → long-CoT SFT → math RL → code RL (§4.1), each from the model before it.
        StageCall(base, ("select",) if trains_tokenizer else (), s.base),
        StageCall(sft, ("base", "select"), with_launch(s.sft, s.topology)),
        *(
            StageCall(rl.named(n), (before.get(n, "base"), "filter_rl"),
                      with_launch(own, s.topology))
            for n, own in trained.items()
        ),
        # Every checkpoint on every benchmark: avg@k with a confidence interval (§4).
        *(
            StageCall(evaluate.named(f"evaluate_{n}"), (n, "benchmarks"), curve.get(n, no_curve))
            for n in models
        ),
    ]  # fmt: skip
    dag = {c.stage.name: c for c in calls if c.stage.name not in s.stages_left_out}
    # The report reads checks and scores last, as its page shows them.
    shown = sorted(dag, key=lambda n: (n.startswith("evaluate_"), n.endswith("agreement")))
    return {**dag, "report": StageCall(report, tuple(shown), ReportSettings(profile=s.profile))}


def upstream_of(target: str, dag: Dag) -> list[StageCall]:
    """The stages that `target` is made from and itself, in the order of the run."""
    names = {target}
    for name, call in reversed(dag.items()):
        names.update(call.inputs if name in names else ())
    return [call for name, call in dag.items() if name in names]
