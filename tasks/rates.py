"""Measured rates: units a second of stages that the store holds, by what makes them comparable."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from configs.training_stages import BaseModelSettings
from tasks.earlier import Earlier, Past
from tasks.hardware import split, this_machine
from training.model_facts import facts_of_base, facts_of_model, name_of_base

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "collect": ("collect", "benchmarks"),
    "distill": ("distill", "rate", "sample", "agreement"),
    "judge": ("judge", "judge_rl", "judge_rate", "judge_agreement"),
    "rl": ("rl_math", "rl_code"),
    "evaluate": ("evaluate_rl_code", "evaluate_rl_math", "evaluate_sft", "evaluate_base"),
}
"""Body of a stage → names of the stages that are this work; a body not here has its own name."""

ROWS = ("kept", "rejected", "easy", "hard", "unrated")


@dataclass(frozen=True)
class Rate:
    """`per_second` units of work a second, from one earlier result."""

    per_second: float
    unit: str
    amount: float
    """Units that were measured."""
    source: str
    hardware: str
    devices: int
    """GPUs, or cores where there are none."""

    def __str__(self) -> str:
        where = f" on {self.hardware}" if self.hardware else ""
        return f"{per(self.per_second)} {self.unit}/s measured in {self.source}{where}"


def per(value: float) -> str:
    """A rate with three digits: `7,730`, `0.142`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Rates:
    """What the store knows about the speed of stages, for the machine that a plan is for."""

    def __init__(self, earlier: Earlier, gpu: str = "") -> None:
        self._earlier = earlier
        self._gpu = gpu
        self._here = this_machine()

    def comparable(
        self, body: str, stage: str, tree: Mapping[str, Any], base: BaseModelSettings | None
    ) -> Iterator[Past]:
        """Results of the same kind of work, those of the same stage first, the newest first."""
        wanted = kind_of(body, tree, base)
        names = FAMILIES.get(body, (stage,))
        for past in self._earlier.of(stage, *(n for n in names if n != stage)):
            if kind_of(body, past.tree, self._base_of(body, past)) == wanted:
                yield past

    def measured(self, body: str, past: Past, *, uses_gpus: bool) -> Rate | None:
        """The rate of an earlier result, if it says anything about the plan's machine."""
        manifest = past.manifest
        amount, unit = amount_of(body, past)
        seconds = past.seconds if body in ("sft", "rl") else manifest.seconds
        if not amount or not seconds:
            return None
        hardware = manifest.hardware
        if uses_gpus and self._gpu:
            if self._gpu.lower().partition("-")[0] not in hardware.lower():
                return None
        elif uses_gpus and hardware not in ("", self._here):
            return None
        speed = manifest.metrics.get("tokens_per_second") if body == "distill" else None
        per_second = speed if speed and unit == "tokens" else amount / seconds
        devices = split(hardware or self._here)[0]  # an older manifest does not say: here
        if body == "distill" and uses_gpus:
            devices = _engine_gpus(past)
        elif processes := manifest.metrics.get("processes"):  # over several nodes
            devices = int(processes)
        source = f"{manifest.stage}/{manifest.key[:8]}"
        return Rate(per_second, unit, amount, source, hardware, devices)

    def _base_of(self, body: str, past: Past) -> BaseModelSettings | None:
        if body not in ("sft", "rl", "evaluate"):
            return None
        base = self._earlier.base_of(past)
        with suppress(ValidationError):  # written by another version of the settings
            return BaseModelSettings.model_validate(base.settings) if base else None
        return None


def kind_of(body: str, tree: Mapping[str, Any], base: BaseModelSettings | None) -> tuple[Any, ...]:
    """What two stages must share for the rate of one to tell about the other."""
    model = (facts_of_base(base) or name_of_base(base)) if base else None
    match body:
        case "collect":
            return tuple(sorted({s.get("kind") for s in tree.get("sources", ())}))
        case "dedup":
            return (tree.get("near"),)
        case "select":
            return (tree.get("size") is None, (tree.get("embedding") or {}).get("kind"))
        case "distill":
            engine = tree.get("engine") or {}
            kind, name = engine.get("kind"), engine.get("model", "")
            return (kind, (kind not in ("openai", "scripted") and facts_of_model(name)) or name)
        case "judge":
            rules = tree.get("judge") or {}
            return tuple(rules.get(n) for n in ("sandbox", "max_tests", "stop_at_first_failure"))
        case "base":
            return (tree.get("kind"), tree.get("model") if tree.get("kind") != "random" else "")
        case "sft":
            return (model, tree.get("lora") is None)
        case "rl":
            return (model, tree.get("lora") is None, tree.get("engine"))
        case "evaluate":
            return (model, tree.get("engine"), (tree.get("sampling") or {}).get("max_tokens"))
        case _:
            return ()


def amount_of(body: str, past: Past) -> tuple[float, str]:
    """How much work an earlier result was, in the units of `tasks.expected_work`."""
    metrics, tree = past.manifest.metrics, past.tree
    match body:
        case "distill":
            kind = (tree.get("engine") or {}).get("kind")
            if kind in ("scripted", "recorded"):
                return metrics.get("samples", 0.0), "answers"
            return metrics.get("tokens", 0.0), "tokens"
        case "judge":
            return metrics.get("scores", 0.0), "answers"
        case "select":
            return metrics.get("kept", 0.0) + metrics.get("rejected", 0.0), "answers"
        case "sft":
            return metrics.get("steps", 0.0) * tree.get("batch_tokens", 0), "tokens"
        case "rl":
            names = ("prompts_per_step", "rollouts_per_prompt", "oversampling")
            amount = metrics.get("rollout_steps", 0.0) * past.mean("completions/mean_length")
            for name in names:
                amount *= tree.get(name, 1)
            return amount, "tokens"
        case "evaluate":
            return metrics.get("completion_tokens", 0.0), "tokens"
        case "base" | "report":
            return 1.0, "run"
        case _:
            return sum(metrics.get(n, 0.0) for n in ROWS), "rows"


def _engine_gpus(past: Past) -> int:
    runtime = (past.tree.get("engine") or {}).get("runtime") or {}
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
    count = 1
    for name in names:
        count *= int(runtime.get(name, 1))
    return count
