"""The whole pipeline as one frozen tree; a profile (configs/profiles) says only what differs."""

from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import PositiveFloat, model_validator

from . import data
from .base import NOT_IN_KEY, Seed, Settings, flat, layered
from .evaluation import EvaluateSettings
from .explain import nearest
from .judging import JudgeSettings
from .sources import CollectSettings, Source
from .topology import Topology
from .training import BaseModelSettings, RLSettings, SFTSettings

StageName = Literal[
    "collect", "benchmarks", "dedup", "decontaminate", "distill", "judge", "rate", "judge_rate",
    "difficulty", "select", "filter_tests", "sample", "judge_rl", "filter_rl", "agreement",
    "judge_agreement", "base", "sft", "rl_math", "rl_code", "evaluate_base", "evaluate_sft",
    "evaluate_rl_math", "evaluate_rl_code", "report",
]  # fmt: skip
"""The stages in the order a run goes through them."""
STAGES: tuple[str, ...] = get_args(StageName)
SAMPLERS = ("distill", "rate", "sample", "agreement")
FOR_SFT = {"distill", "judge", "rate", "judge_rate", "difficulty", "select", "sft", "evaluate_sft"}
FOR_RL_MATH = FOR_SFT | {"rl_math", "evaluate_rl_math"}
# stages that a start from a model of this kind does not run
LEFT_OUT_BEFORE = {"base": set[str](), "sft": FOR_SFT, "rl_math": FOR_RL_MATH}


def group_of_stage(stage: str) -> str:
    """The settings that a stage reads: `evaluate` of evaluate_sft, `judge_rl` of judge_rl."""
    return stage if stage in Pipeline.model_fields else stage.partition("_")[0]


class Pipeline(Settings):
    """Base model to reasoning model, by default the paper's. The order is that of the form."""

    profile: str
    """Names the experiment in MLflow"""
    seed: Seed = 0
    """Of every random stage of this run"""
    sft: SFTSettings = SFTSettings()
    rl_math: RLSettings = RLSettings()
    rl_code: RLSettings = RLSettings(domain="code", mini_batch_prompts=32, learning_rate=5e-7)
    """§4.1: mini-batches of 32 prompts, learning rate 5e-7"""
    evaluate: EvaluateSettings = EvaluateSettings()
    base: BaseModelSettings = BaseModelSettings()
    distill: data.SampleSettings
    rate: data.SampleSettings | None = None
    sample: data.SampleSettings
    judge: JudgeSettings = JudgeSettings()
    judge_rl: JudgeSettings = JudgeSettings()
    difficulty: data.DifficultySettings = data.DifficultySettings()
    select: data.SelectSettings = data.SelectSettings()
    filter_tests: data.FilterTestsSettings = data.FilterTestsSettings()
    filter_rl: data.FilterRLSettings = data.FilterRLSettings()
    decontaminate: data.DecontaminateSettings = data.DecontaminateSettings()
    dedup: data.DedupSettings = data.DedupSettings()
    collect: CollectSettings
    benchmarks: CollectSettings
    agreement: data.SampleSettings | None = None
    """Recorded answers with published grades, to check the judge against"""
    topology: Annotated[Topology, NOT_IN_KEY] = Topology()
    """Machines that plans count on; checked before a launch"""
    stall_minutes: Annotated[PositiveFloat, NOT_IN_KEY] = 120.0
    """Watchdog: any stage that shows no progress for this long fails, with the end of its log"""

    @model_validator(mode="before")
    @classmethod
    def as_a_profile_says_it(cls, profile: Any) -> Any:
        """`data.root` is the root of each place that has none; collect keeps what an engine takes
        of published answers; and one key of rl_code leaves its other defaults."""
        if not isinstance(profile, dict):
            return profile
        code = cls.model_fields["rl_code"].default.model_dump(exclude_unset=True)
        values = layered({"rl_code": code}, profile)
        for own in profile.values():
            match own:
                case {"engine": {"from": "catalogue"}}:
                    values = layered(values, {"collect": {"traces": True}})
                case {"rater": "published"} | {"pass_rates": "published"}:
                    values = layered(values, {"collect": {"pass_rates": True}})
        match values.pop("data", None):
            case None:
                return values
            case {"root": str(root), **others} if not others:
                values = layered({"collect": {"root": root}, "benchmarks": {"root": root}}, values)
            case other:
                raise ValueError(f"data: {other!r} is no folder; write data.root=FOLDER")
        for name in SAMPLERS:
            for engine in ("engine", "fallback"):
                own = values.get(name)
                match own.get(engine) if isinstance(own, dict) else None:
                    case {"files": [*files]}:
                        paths = [str(Path(root) / str(file)) for file in files]
                        values = layered(values, {name: {engine: {"files": paths}}})
        return values

    @model_validator(mode="after")
    def what_stages_take_is_there(self) -> Self:
        kept = self.rl_math.keep_every or self.rl_code.keep_every
        if self.evaluate.learning_curve and not kept:
            fix = "set rl_math.keep_every or rl_code.keep_every"
            raise ValueError(f"evaluate.learning_curve scores models that RL keeps: {fix}")
        collected = [source.name for source in self.collect.sources]
        settings = flat(self.model_dump(exclude={"collect", "benchmarks", "agreement"}))
        for place, names in settings.items():
            for name in names if isinstance(names, tuple) and place.endswith("sources") else ():
                if name not in collected:
                    near = nearest(name, collected)
                    raise ValueError(f"{place}: {name!r} is not collected{near}")
        exams = [source.name for source in self.benchmarks.sources]
        chosen = "protocols" in self.evaluate.model_fields_set
        for protocol in self.evaluate.protocols if exams and chosen else ():
            if (name := protocol.source or protocol.name) not in exams:
                none = f"benchmarks.sources has no {name!r}{nearest(name, exams)}"
                fix = f"benchmarks: {{sources+: [{{use: {name}}}]}}, or name one in `source`"
                raise ValueError(f"evaluate.protocols.{protocol.name}: {none}; add it by {fix}")
        return self

    @property
    def untrained(self) -> list[str]:
        """Sources that neither SFT nor RL takes, though they do not say that they are for none."""
        mixture = {"math": self.select.math_sources, "code": self.select.code_sources}
        for_rl = [self.filter_tests.sources]
        for_rl += [] if "sample" in self.stages_left_out else [self.sample.sources]

        def is_taken(source: Source) -> bool:
            for_sft = [self.distill.sources, mixture[source.domain]]
            both = (for_sft, for_rl)
            return any(all(not names or source.name in names for names in lists) for lists in both)

        return [s.name for s in self.collect.sources if not (s.untrained or is_taken(s))]

    def lines_to_add(self, names: list[str]) -> list[str]:
        """What to write so that a stage takes these sources, in a profile or after --set."""
        they = ", ".join(names)
        sft = ["distill", *(["rate"] if self.rate and self.rate.sources else [])]
        rl = ["filter_tests", *(["sample"] if "sample" not in self.stages_left_out else [])]
        return [
            f"collect.sources: no stage takes {they}, so nobody would be trained on it. Add one of "
            "these to the profile; or `untrained: true` to the source, if it is for the filters",
            *(f"for {goal}: " + "   ".join(f"{stage}: {{sources+: [{they}]}}" for stage in stages)
              for goal, stages in (("SFT", sft), ("RL", rl))),
        ]  # fmt: skip

    @model_validator(mode="after")
    def answers_fit_into_the_model(self) -> Self:
        """As far as settings know it: RL looks again, at the prompts and the model itself."""
        most = self.base.max_positions if self.base.kind == "random" else self.base.positions
        for name in ("sft.max_length", "rl_math.max_tokens", "rl_code.max_tokens"):
            if most is not None and (tokens := attrgetter(name)(self)) > most:
                raise ValueError(f"{name}={tokens} is more than the {most} positions of base")
        return self

    @model_validator(mode="after")
    def adapters_lie_beside_whole_weights(self) -> Self:
        t = self.topology
        for name in ("sft", "rl_math", "rl_code"):
            s, own = getattr(self, name), getattr(self, name).runtime.launch
            world, sharding = (own.world, own.sharding) if own else (t.gpus or t.nodes, t.sharding)
            if s.lora and world > 1 and sharding != "none":
                fix = "set topology.sharding=none, a copy on each, or one GPU"
                raise ValueError(f"{name}.lora is for weights that are not sharded: {fix}")
        return self

    @property
    def stages_left_out(self) -> set[str]:
        """Stages that these settings do not run."""
        rating = set() if self.difficulty.rater == "model" else {"rate", "judge_rate"}
        checking = set() if self.agreement else {"agreement", "judge_agreement"}
        sampling = {"sample", "judge_rl"} if self.filter_rl.pass_rates == "published" else set()
        return rating | checking | sampling | LEFT_OUT_BEFORE[self.base.stands_for]
