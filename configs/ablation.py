"""The paper's tables and figures as experiments: claim, arms, the score that decides, evidence."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from .loading import load_group, load_profile, named_file, names_in, read_yaml
from .settings.base import Settings
from .settings.explain import ConfigError
from .settings.pipeline import Pipeline

FOLDER = Path(__file__).parent / "ablations"
Scored = Literal["sft", "rl_math", "rl_code"]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
Values = Annotated[dict[str, Any], Field(default_factory=dict)]


class Arm(Settings):
    """One line of a table: a name and the settings that make it, as `a.b: value`."""

    name: str
    set: Values


class Contrast(Settings):
    """`better` scores higher than each of `than`, or is steadier."""

    better: str
    than: Names
    measure: Literal["score", "steadiness"] = "score"
    """score: of the last checkpoint; steadiness: falling less along the way"""
    says: str
    """The sentence of the paper that it stands for"""
    part_of_claim: bool = True
    """Its verdict counts for the claim; else it is only shown"""

    def against(self, other: str) -> str:
        """`gppo over cispo`; `gppo steadier than cispo`."""
        return f"{self.better} {'over' if self.measure == 'score' else 'steadier than'} {other}"


class Scale(Settings):
    """One profile's version of the experiment."""

    benchmarks: Names
    """The first one decides the verdict"""
    set: Values
    """Settings of every arm, as `a.b: value`"""
    arms: Annotated[dict[str, dict[str, Any]], Field(default_factory=dict)]
    """More settings of single arms"""
    evidence: str
    """Why this is, or is not, evidence about a model of 8B parameters; each line a paragraph"""


class Registration(Settings):
    """What is fixed before the first seed runs; the commit of the experiment's file dates it."""

    metric: str
    """What is compared"""
    test: str
    """What decides"""
    seeds: str
    """Why so many, and from which pilots"""


class Ablation(Settings):
    """One table or figure of the paper."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
    """That of its file: it names the last stage"""
    shows: str
    """`Table 6`"""
    title: str
    claim: str
    """What the paper concludes, in one sentence"""
    untested: str = ""
    """Parts of the claim that the scores do not test"""
    scored: Scored
    """The checkpoint whose scores count"""
    arms: Annotated[tuple[Arm, ...], Field(min_length=2)]
    contrasts: tuple[Contrast, ...]
    """None: a pilot, which shows its arms and decides nothing"""
    seeds: Annotated[int, Field(ge=1, le=100)] = 5
    """Runs an arm, paired by seed"""
    first_seed: NonNegativeInt = 0
    """Of the runs; pilots have seeds of their own"""
    starts: PositiveInt | None = None
    """Data and SFT that all arms share: run i has those of seed i mod `starts`; none: of seed i"""
    registered: Registration | None = None
    control: str = ""
    """An arm that a contrast compares with and that must be beaten, like one of random rewards"""
    curves: tuple[str, ...] = ()
    """Training metrics to draw, with a band over seeds"""
    scales: dict[str, Scale]
    paper: Annotated[dict[str, dict[str, float]], Field(default_factory=dict)]
    """The paper's figures in percent: benchmark → arm → score"""
    source: str = ""
    """Where in the paper its figures stand"""

    @model_validator(mode="after")
    def every_name_is_an_arm(self) -> Self:
        arms = {a.name for a in self.arms}
        if len(arms) < len(self.arms):
            raise ValueError("two arms have one name")
        if self.contrasts and not any(c.part_of_claim for c in self.contrasts):
            raise ValueError("no contrast is part of the claim")
        if self.starts and self.scored == "sft":
            raise ValueError(f"starts={self.starts} shares SFT, which scored=sft compares: drop it")
        named = {n for c in self.contrasts for n in (c.better, *c.than)}
        named |= {n for s in self.scales.values() for n in s.arms}
        named |= {n for row in self.paper.values() for n in row} | ({self.control} - {""})
        if unknown := sorted(named - arms):
            raise ValueError(f"no arm is called {unknown[0]!r} (arms: {', '.join(sorted(arms))})")
        against = {n for c in self.contrasts if c.measure == "score" for n in c.than}
        if self.control and self.control not in against:
            entry = f"{{better: …, than: [{self.control}], says: …, part_of_claim: false}}"
            raise ValueError(f"no contrast compares with control={self.control!r}: add {entry}")
        return self

    @property
    def stage(self) -> str:
        return f"ablate_{self.name}"

    def scale(self, profile: str) -> Scale:
        """Raises ConfigError for a profile that this experiment does not describe."""
        if profile not in self.scales:
            profiles = ", ".join(self.scales)
            mistake = f"{self.name} is not described for {profile!r} (profiles: {profiles})"
            raise ConfigError([mistake])
        return self.scales[profile]

    def settings(self, profile: str, arm: str, seed: int) -> Pipeline:
        """The whole pipeline of one arm and run; raises ConfigError."""
        scale = self.scale(profile)
        own = next(a.set for a in self.arms if a.name == arm)
        of_run: dict[str, Any] = {"seed": seed}
        if self.starts:
            of_run = {"seed": seed % self.starts, f"{self.scored}.seed": seed}
        # that an arm learns nothing is a result of the experiment
        calm = {f"{rl}.runtime.stop_without_lesson": False for rl in ("rl_math", "rl_code")}
        layers = (calm, scale.set, own, scale.arms.get(arm, {}), of_run)
        entries = (item for layer in layers for item in layer.items())  # of two the later one wins
        overrides = [f"{n}={json.dumps(v, ensure_ascii=False)}" for n, v in entries]
        pipeline = load_profile(profile, overrides)
        curve = pipeline.evaluate.along_the_way()
        drawn = [p.name for p in curve.protocols] if curve else []
        decides, wanted = scale.benchmarks[0], any(c.measure != "score" for c in self.contrasts)
        if wanted and decides not in drawn:
            advice = f"set {self.scored}.keep_every and evaluate.learning_curve for {profile!r}"
            raise ConfigError([f"{self.name}: steadiness on {decides} needs its curve: {advice}"])
        return pipeline


def ablations() -> list[str]:
    return names_in(FOLDER)


def load_ablation(name: str) -> Ablation:
    """One of `ablations()`, or a file `….yaml` of one's own; raises ConfigError as load_profile."""
    path = named_file(FOLDER, "ablation", name)
    return load_group(Ablation, (), {"name": path.stem, **read_yaml(path)})
