"""What a stage will take: time, tokens, GPU-hours, disk and money, by measured rates where the
store has them, else by FLOPs and named assumptions, else not at all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from configs.settings.base import Settings
from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime
from configs.settings.placing import server_gpus
from configs.settings.topology import Topology
from configs.settings.training import BaseModelSettings
from tasks.planning.expected_work import WORK, AssumptionLog, StageContext, Work, once
from tasks.planning.store_history import PastResult, StoreHistory, flat
from tasks.stage.stage import Stage
from tasks.store.hardware import cores, gpus, split, this_machine
from tasks.store.store import Artifact
from training.engines.generate import is_local
from training.engines.journal import cost_of
from training.sizing.model_facts import facts_of_base, facts_of_model

Basis = Literal["recorded", "measured", "assumed", "unknown"]
OF_DISK = frozenset({"bytes_per_token", "bytes_per_row"})
"""Assumptions that tell about disk alone."""
ASSUMED_COUNTS = "assumed"
"""Among the counts of a forecast: 1 where they rest on an assumption."""
NO_PRICE = "no price is set (engine.runtime)"
ON_THE_MODEL = ("base", "sft", "rl", "evaluate")
SAME_WORK: Mapping[str, tuple[str, ...]] = {
    "collect": ("collect", "benchmarks"),
    "distill": ("distill", "rate", "sample", "agreement"),
    "judge": ("judge", "judge_rl", "judge_rate", "judge_agreement"),
    "rl": ("rl_math", "rl_code"),
    "evaluate": ("evaluate_rl_code", "evaluate_rl_math", "evaluate_sft", "evaluate_base"),
}
"""Body of a stage → names of the stages that are this work; a body not here has its own name."""
SAME_SPEED: Mapping[str, tuple[str, ...]] = {
    "collect": ("sources.*.kind",),
    "dedup": ("near",),
    "distill": ("engine.kind", "engine.model"),
    "judge": ("judge.sandbox", "judge.max_tests", "judge.stop_at_first_failure"),
    "select": ("size", "embedding.kind"),
    "sft": ("lora*",),
    "rl": ("lora*", "engine"),
    "evaluate": ("engine", "sampling.max_tokens"),
    "base": ("kind", "model", "layers", "hidden", "mlp", "heads", "kv_heads", "vocabulary"),
}
"""Body of a stage → settings in which two results agree if the rate of one tells about the other;
what trains or evaluates a model also agrees in those of `base`."""
COUNTED = {"judge": ("scores",), "select": ("kept", "rejected"), "evaluate": ("completion_tokens",)}
ROWS = ("kept", "rejected", "easy", "hard", "unrated")


@dataclass(frozen=True)
class PlannedStage:
    """One line of the plan. What is reused has its recorded figures; what is to be computed those
    of a forecast, None where nothing is known."""

    stage: str
    action: Literal["reuse", "resume", "compute"] = "compute"
    why: str = ""
    key: str = ""
    seconds: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    basis: Basis = "unknown"
    """recorded: of this result; measured: by rates of the store; assumed: partly or wholly not."""
    how: str = ""
    """The arithmetic behind the time."""
    assumptions: tuple[str, ...] = ()
    """Names in `configs.settings.assumptions.Assumptions`."""
    assumed: frozenset[str] = frozenset()
    """Names of the figures above that rest on an assumption."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What the result is expected to count, for the stages below."""


@dataclass(frozen=True)
class Rate:
    """`per_second` units of work a second on `devices` GPUs (cores where there are none), from one
    earlier result of `amount` units."""

    past: PastResult
    amount: float
    per_second: float
    devices: int


class Forecaster:
    """Forecasts of the stages of one run, on the machines that its topology names."""

    def __init__(
        self,
        earlier: StoreHistory,
        topology: Topology | None = None,
        base: BaseModelSettings | None = None,
    ) -> None:
        self._earlier = earlier
        self._topology = topology or Topology()
        self._base = base

    def of(self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings) -> PlannedStage:
        """A stage whose work nobody has described takes what its newest result took."""
        body = stage.body.__name__
        alike = self.comparable(body, stage.name, settings)
        assume = AssumptionLog(self._topology.assume)
        facts = facts_of_base(self._base) if body in ON_THE_MODEL and self._base else None
        if body == "distill" and is_local(getattr(settings, "engine")):  # noqa: B009
            facts = facts_of_model(getattr(settings, "engine").model)  # noqa: B009
        past = alike[0] if alike else None
        s = StageContext(stage.name, settings, inputs, past, self._earlier, facts, assume)
        work = WORK.get(body, once)(s)
        guessed = any(i.metrics.get(ASSUMED_COUNTS) for i in inputs)
        work_assumed = guessed or bool(set(assume.names) - OF_DISK)
        count = self.gpus(body, settings)
        seconds, how = self._measured(body, stage.name, alike, work, count)
        measured = seconds is not None
        if not measured:
            seconds, how = self._by_assumptions(body, s, work, count)
        gpu_hours = seconds * count / 3600 if seconds is not None and count else None
        cost = self._cost(s, work, gpu_hours)
        assumed: set[str] = {"bytes"} if OF_DISK & set(assume.names) else set()
        if work_assumed:
            assumed |= {"seconds", "tokens", "gpu_hours", "bytes", "cost"}
        elif not measured and seconds is not None:
            assumed |= {"seconds", "gpu_hours"} | ({"cost"} if gpu_hours else set())
        basis = "unknown" if seconds is None else "assumed" if "seconds" in assumed else "measured"
        if getattr(settings, "early_stop", None):
            how += "; at most, for early_stop asks for fewer answers"
        return PlannedStage(
            stage.name, seconds=seconds, bytes=work.bytes, tokens=work.tokens,
            gpu_hours=gpu_hours, cost=cost, basis=basis, how=how,
            assumptions=tuple(assume.names), assumed=frozenset(assumed),
            counts={**work.counts, ASSUMED_COUNTS: float(work_assumed)},
        )  # fmt: skip

    def comparable(self, body: str, stage: str, settings: Settings) -> list[PastResult]:
        """Results of the same kind of work, those of the same stage first, the newest first."""
        wanted = _speed(body, flat(settings.model_dump(mode="json")))
        names = dict.fromkeys((stage, *SAME_WORK.get(body, ())))
        found = [p for p in self._earlier.of(*names) if _speed(body, p.settings) == wanted]
        if body not in ON_THE_MODEL[1:] or self._base is None:
            return found
        model = _speed("base", flat(self._base.model_dump(mode="json")))
        bases = [(past, self._earlier.base_of(past)) for past in found]
        return [p for p, base in bases if base and _speed("base", flat(base.settings)) == model]

    def rate(self, body: str, past: PastResult, *, uses_gpus: bool) -> Rate | None:
        """The rate of an earlier result, if it says anything about the plan's machine."""
        amount, hardware = amount_of(body, past), past.manifest.hardware
        seconds = past.seconds if body in ("sft", "rl") else past.manifest.seconds
        if not amount or not seconds:
            return None
        card = self._topology.gpu.lower().partition("-")[0] if self._topology.gpus else ""
        if uses_gpus and card and card not in hardware.lower():
            return None
        if uses_gpus and not card and hardware not in ("", this_machine()):
            return None
        devices = split(hardware or this_machine())[0]  # an older manifest does not say: here
        if body == "distill" and uses_gpus:
            devices = _product(EngineRuntime.model_validate(past.tree["engine"]["runtime"]))
        devices = int(past.metrics.get("processes", devices))  # over several nodes
        engine = past.metrics.get("tokens_per_second") if body == "distill" else None
        return Rate(past, amount, engine or amount / seconds, devices)

    def gpus(self, body: str, settings: Any) -> int:
        """GPUs that the stage keeps busy; 0: none."""
        everything = self._topology.gpus or (split(gpus())[0] if gpus() else 0)
        match body:
            case "distill":
                local = is_local(settings.engine) and everything
                return min(_product(settings.engine.runtime), everything) if local else 0
            case "evaluate":
                return min(_product(settings.engine_runtime), everything)
            case "sft":
                return everything
            case "rl":
                own = server_gpus(settings) or (
                    everything if settings.engine == "vllm_server" else 0
                )
                return min((self._topology.rl_gpus or everything) + own, everything)
            case _:
                return 0

    def _measured(
        self, body: str, stage: str, alike: list[PastResult], work: Work, count: int
    ) -> tuple[float | None, str]:
        """By the comparable result, of the same stage if there is one, that is nearest in size.

        Of the data stages, only judging is spread over the cores of a node.
        """
        rates = [r for past in alike if (r := self.rate(body, past, uses_gpus=count > 0))]
        if not rates:
            return None, ""

        def far(rate: Rate) -> tuple[bool, float]:
            other = rate.past.manifest.stage != stage
            return other, abs(math.log(max(rate.amount, 1.0) / max(work.amount, 1.0)))

        rate = min(rates, key=far)
        where = f" on {rate.past.manifest.hardware}" if rate.past.manifest.hardware else ""
        speed = f"{per(rate.per_second)} {work.unit}/s measured in {rate.past.name}{where}"
        wanted = self._topology.cores_per_node if body == "judge" else count
        if not wanted or not self._topology.gpus or wanted == rate.devices:
            return work.amount / rate.per_second, f"{per(work.amount)} {work.unit}, {speed}"
        seconds = work.amount / (rate.per_second * wanted / rate.devices)
        return seconds, f"{per(work.amount)} {work.unit}, {speed} × {wanted} / {rate.devices}"

    def _by_assumptions(
        self, body: str, s: StageContext, work: Work, count: int
    ) -> tuple[float | None, str]:
        if body == "judge":
            return self._judging(s, work.amount)
        if body == "distill" and s.settings.engine.kind == "openai":
            stream, runtime = s.assume("stream_tokens_per_second"), s.settings.engine.runtime
            how = f"{_e(work.amount)} tokens at {per(stream)}/s × {runtime.concurrency} requests"
            priced = runtime.input_price is not None or runtime.output_price is not None
            how += "" if priced else f"; {NO_PRICE}"
            return work.amount / (stream * runtime.concurrency), how
        if body in ("sft", "rl", "evaluate") or (body == "distill" and is_local(s.settings.engine)):
            return self._by_flops(body, s, work, count)
        rate = "rows_per_second" if body == "distill" else f"{body}_rate"
        if not hasattr(s.assume.values, rate):
            return None, "not counted: never measured"
        per_second = s.assume(rate)
        return work.amount / per_second, f"{per(work.amount)} {work.unit} at {per(per_second)}/s"

    def _judging(self, s: StageContext, answers: float) -> tuple[float, str]:
        workers, per_core = self._topology.cores_per_node or cores(), s.assume("judged_per_core")
        how = f"{per(answers)} answers at {per(per_core)}/s × {workers} cores"
        return answers / (per_core * workers), how

    def _by_flops(
        self, body: str, s: StageContext, work: Work, count: int
    ) -> tuple[float | None, str]:
        tflops = self._topology.card.tflops
        if not count or not tflops or s.facts is None or work.tokens is None:
            reason = "no GPU is named (topology.gpu)" if s.facts else "sizes of the model unknown"
            return None, f"not counted: never measured here, and {reason}"
        n, generating, training = s.facts.parameters, count, count
        if body == "rl" and s.settings.engine == "vllm_server":
            own = server_gpus(s.settings)
            training = self._topology.rl_gpus or max(1, count - own)
            generating = own or max(1, count - training)
        terms: list[tuple[float, str]] = []

        def add(what: str, factor: int, tokens: float, share: str, on: int, own: str = "") -> None:
            if own and getattr(s.assume.values, own) is not None:
                rate = s.assume(own)
                text = f"{what} {_e(tokens)} tokens at {per(rate)}/s × {on} GPUs"
                return terms.append((tokens / (rate * on), text))
            mfu = s.assume(share)
            text = f"{what} {factor}·{_e(n)}·{_e(tokens)} at {mfu:.0%} of {on} × {tflops:g} TFLOP/s"
            return terms.append((factor * n * tokens / (tflops * 1e12 * on * mfu), text))

        if body != "sft":
            add("generate", 2, work.tokens, "generate_mfu", generating, "generated_per_gpu")
        trained = work.trained_tokens
        if body == "rl":
            seconds, how = self._judging(s, work.counts["rollouts"])
            terms.append((seconds, f"judge {how}"))
            s.assume("prompt_tokens")
            add("old log-probabilities", 2, trained, "forward_mfu", training)
        if body in ("sft", "rl"):
            add("train", 6, trained, "train_mfu", training, "trained_per_gpu")
        return sum(t for t, _ in terms), " + ".join(text for _, text in terms)

    def _cost(self, s: StageContext, work: Work, gpu_hours: float | None) -> float | None:
        """Money: tokens at the engine's prices and GPU-hours at the topology's."""
        asked, price = None, self._topology.gpu_hour_price
        if isinstance(s.settings, SampleSettings):
            asked = cost_of(s.settings.engine.runtime, work.prompt_tokens, work.tokens or 0.0)
            if asked is not None and s.mean("prompt_tokens", "samples") is None:
                s.assume("prompt_tokens")
        rented = gpu_hours * price if gpu_hours is not None and price is not None else None
        known = [c for c in (asked, rented) if c is not None]
        return sum(known) if known else None


def amount_of(body: str, past: PastResult) -> float:
    """How much work an earlier result was, in the units of `tasks.planning.expected_work`."""
    tree, metrics = past.tree, past.metrics
    match body:
        case "distill":
            read = tree["engine"]["kind"] in ("scripted", "recorded")
            return metrics.get("samples" if read else "tokens", 0.0)
        case "sft":
            return metrics.get("steps", 0.0) * tree["batch_tokens"]
        case "rl":
            a_step = tree["prompts_per_step"] * tree["rollouts_per_prompt"] * tree["oversampling"]
            steps = metrics.get("rollout_steps", 0.0)
            return steps * past.mean("completions/mean_length") * a_step
        case _ if WORK.get(body, once) is once:
            return 1.0
        case _:
            return sum(metrics.get(n, 0.0) for n in COUNTED.get(body, ROWS))


def per(value: float) -> str:
    """A rate with three digits: `7,730`, `0.142`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _speed(body: str, settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What the settings (by dotted name) say of speed, without the names of sources."""
    patterns = SAME_SPEED.get(body, ())
    found = {(p, str(v)) for n, v in settings.items() for p in patterns if fnmatchcase(n, p)}
    return sorted(found)


def _product(runtime: EngineRuntime) -> int:
    return runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel


def _e(value: float) -> str:
    """`8.19e9`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
