"""What a stage will take: time, tokens, GPU-hours, disk and money, by measured rates where the
store has them, else by FLOPs and named assumptions, else not at all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from configs.base import Settings
from configs.data_stages import SampleSettings
from configs.engines import EngineRuntime, EngineSettings
from configs.placing import server_gpus
from configs.topology import Topology
from configs.training_stages import BaseModelSettings
from tasks.earlier import Earlier, Past
from tasks.expected_work import OF_DISK, WORK
from tasks.hardware import cores, gpus, split
from tasks.rates import Rate, Rates, per
from tasks.scene import Scene, Taken, Work
from tasks.stage import Stage
from tasks.store import Artifact
from training.engines.figures import cost_of
from training.engines.make import is_local
from training.model_facts import ModelFacts, facts_of_base, facts_of_model

Basis = Literal["measured", "assumed", "unknown"]
DATA_STAGES = ("collect", "dedup", "decontaminate", "difficulty", "select", "filter_tests",
               "filter_rl")  # fmt: skip
ASSUMED_COUNTS = "assumed"
"""Among the counts of a forecast: 1 where they rest on an assumption."""
NO_PRICE = "no price is set (engine.runtime)"
AT_MOST = "; at most, for early_stop asks for fewer answers"
FIGURES = ("seconds", "tokens", "gpu_hours", "bytes", "cost")
PER_GPU = {"train_mfu": "trained_per_gpu", "generate_mfu": "generated_per_gpu"}
"""Rates that take the place of a share of the peak where somebody states them."""
ON_THE_MODEL = ("base", "sft", "rl", "evaluate")


@dataclass(frozen=True)
class Forecast:
    """None where nothing is known. `counts`: what the result is expected to count, for the stages
    below; `how`: the arithmetic behind the time; `assumptions`: fields of
    `configs.assumptions.Assumptions` that were used; `assumed`: which figures rest on them;
    `rests`: (rate, seconds) of the assumed rates, to which these seconds are in inverse ratio."""

    seconds: float | None = None
    tokens: float | None = None
    gpu_hours: float | None = None
    bytes: float | None = None
    cost: float | None = None
    basis: Basis = "unknown"
    how: str = ""
    assumptions: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()
    rests: tuple[tuple[str, float], ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Time:
    seconds: float | None
    how: str
    basis: Basis
    rests: tuple[tuple[str, float], ...] = ()


class Forecaster:
    """Forecasts of the stages of one run, on the machines that its topology names."""

    def __init__(
        self,
        earlier: Earlier,
        topology: Topology | None = None,
        base: BaseModelSettings | None = None,
    ) -> None:
        self._earlier = earlier
        self._topology = topology or Topology()
        self._base = base
        self._rates = Rates(earlier, self._topology.gpu if self._topology.gpus else "")

    def of(self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings) -> Forecast | None:
        """None for a stage whose work nobody has described in `tasks.expected_work`."""
        body = stage.body.__name__
        if body not in WORK:
            return None
        tree = settings.model_dump(mode="json")
        base = self._base if body in ON_THE_MODEL else None
        alike = list(self._rates.comparable(body, stage.name, tree, base))
        assume = Taken(self._topology.assume)
        facts = self._facts(body, settings)
        past = alike[0] if alike else None
        scene = Scene(stage.name, settings, inputs, past, self._earlier, facts, assume)
        work = WORK[body](scene)
        guessed = any(i.metrics.get(ASSUMED_COUNTS) for i in inputs)
        work_assumed = bool(set(assume.names) - OF_DISK) or guessed
        count = self.gpus(body, settings)
        time = self._measured(body, stage.name, alike, work, count)
        time = time or self._assumed(body, scene, work, count)
        gpu_hours = time.seconds * count / 3600 if time.seconds is not None and count else None
        cost = self._cost(scene, work, gpu_hours)
        assumed = set(FIGURES) if work_assumed else set[str]()
        if time.basis == "assumed":
            assumed |= {"seconds", "gpu_hours"} | ({"cost"} if gpu_hours else set())
        if OF_DISK & set(assume.names):
            assumed.add("bytes")
        return Forecast(
            seconds=time.seconds,
            tokens=work.tokens,
            gpu_hours=gpu_hours,
            bytes=work.bytes,
            cost=cost,
            basis="assumed" if "seconds" in assumed and time.seconds is not None else time.basis,
            how=time.how + (AT_MOST if getattr(settings, "early_stop", None) else ""),
            assumptions=tuple(assume.names),
            assumed=frozenset(assumed),
            rests=time.rests,
            counts={**work.counts, ASSUMED_COUNTS: float(work_assumed)},
        )

    def gpus(self, body: str, settings: Any) -> int:
        """GPUs that the stage keeps busy; 0: none."""
        here = split(gpus())[0] if gpus() else 0
        everything = self._topology.gpus or here
        match body:
            case "distill":
                engine: EngineSettings = settings.engine
                local = is_local(engine) and everything
                return min(_product(engine.runtime), everything) if local else 0
            case "evaluate":
                return min(_product(settings.engine_runtime), everything)
            case "sft":
                return everything
            case "rl":
                training = self._topology.rl_gpus or everything
                if settings.engine == "vllm_server":
                    own = server_gpus(settings)
                    return min(training + own, everything) if own else everything
                return training
            case _:
                return 0

    def _facts(self, body: str, settings: Any) -> ModelFacts | None:
        if body == "distill" and is_local(settings.engine):
            return facts_of_model(settings.engine.model)
        if body in ON_THE_MODEL and self._base:
            return facts_of_base(self._base)
        return None

    def _measured(
        self, body: str, stage: str, alike: list[Past], work: Work, count: int
    ) -> _Time | None:
        """By the comparable result, of the same stage if there is one, that is nearest in size."""
        rates = [self._rates.measured(body, past, uses_gpus=count > 0) for past in alike]
        usable = [r for r in rates if r and r.unit == work.unit]
        if not usable:
            return None
        wanted = max(work.amount, 1.0)

        def far(rate: Rate) -> tuple[bool, float]:
            other = rate.source.partition("/")[0] != stage
            return other, abs(math.log(max(rate.amount, 1.0) / wanted))

        rate = min(usable, key=far)
        scale, text = self._scale(body, rate, count)
        seconds = work.amount / (rate.per_second * scale)
        return _Time(seconds, f"{per(work.amount)} {work.unit}, {rate}{text}", "measured")

    def _scale(self, body: str, rate: Rate, count: int) -> tuple[float, str]:
        """GPUs of the plan for each one measured; of the data stages, only judging is spread over
        the cores of a node."""
        wanted = count
        if body == "judge":
            wanted = self._topology.cores_per_node
        if not wanted or not self._topology.gpus or wanted == rate.devices:
            return 1.0, ""
        return wanted / rate.devices, f" × {wanted} / {rate.devices}"

    def _assumed(self, body: str, s: Scene, work: Work, count: int) -> _Time:
        if body in DATA_STAGES:
            return _at(s, work.amount, "rows", f"{body}_rate")
        if body == "judge":
            return self._judging(s, work.amount)
        if body == "distill" and not is_local(s.settings.engine):
            return _asked(s, work)
        if body in ("distill", "sft", "rl", "evaluate"):
            return self._by_flops(body, s, work, count)
        return _Time(None, "not counted: never measured", "unknown")

    def _judging(self, s: Scene, answers: float) -> _Time:
        workers = self._topology.cores_per_node or cores()
        per_core = s.assume("judged_per_core")
        seconds = answers / (per_core * workers)
        how = f"{per(answers)} answers at {per(per_core)}/s × {workers} cores"
        return _Time(seconds, how, "assumed", (("judged_per_core", seconds),))

    def _by_flops(self, body: str, s: Scene, work: Work, count: int) -> _Time:
        tflops = self._topology.card.tflops
        if not count or not tflops or s.facts is None or work.tokens is None:
            reason = "no GPU is named (topology.gpu)" if s.facts else "sizes of the model unknown"
            return _Time(None, f"not counted: never measured here, and {reason}", "unknown")
        n, peak = _e(s.facts.parameters), tflops * 1e12
        generating, training = self._split(body, s.settings, count)
        terms: list[tuple[float, str, str]] = []

        def add(what: str, flops: float, factor: int, tokens: float, share: str, gpus: int) -> None:
            own = PER_GPU.get(share, "")
            if own and (rate := s.assume.given(own)):
                text = f"{what} {_e(tokens)} tokens at {per(rate)}/s × {gpus} GPUs"
                return terms.append((tokens / (rate * gpus), text, own))
            mfu = s.assume(share)
            text = f"{what} {factor}·{n}·{_e(tokens)} at {mfu:.0%} of {gpus} × {tflops:g} TFLOP/s"
            return terms.append((flops / (peak * gpus * mfu), text, share))

        if body != "sft":
            flops = s.facts.forward_flops(work.tokens)
            add("generate", flops, 2, work.tokens, "generate_mfu", generating)
        trained = work.trained_tokens
        if body == "rl":
            judged = self._judging(s, work.counts["rollouts"])
            terms.append((judged.seconds or 0.0, f"judge {judged.how}", "judged_per_core"))
            s.assume("prompt_tokens")
            flops = s.facts.forward_flops(trained)
            add("old log-probabilities", flops, 2, trained, "forward_mfu", training)
        if body in ("sft", "rl"):
            add("train", s.facts.train_flops(trained), 6, trained, "train_mfu", training)
        how = " + ".join(text for _, text, _ in terms)
        rests = tuple((rate, seconds) for seconds, _, rate in terms)
        return _Time(sum(seconds for seconds, _, _ in terms), how, "assumed", rests)

    def _split(self, body: str, settings: Any, count: int) -> tuple[int, int]:
        """GPUs that generate and GPUs that train: apart where vLLM is a server of its own."""
        if body == "rl" and settings.engine == "vllm_server":
            own = server_gpus(settings)
            training = self._topology.rl_gpus or max(1, count - own)
            return own or max(1, count - training), training
        return count, count

    def _cost(self, s: Scene, work: Work, gpu_hours: float | None) -> float | None:
        """Money: tokens at the engine's prices and GPU-hours at the topology's."""
        asked = None
        if isinstance(s.settings, SampleSettings):
            asked = cost_of(s.settings.engine.runtime, work.prompt_tokens, work.tokens or 0.0)
            if asked is not None and s.mean("prompt_tokens", "samples") is None:
                s.assume("prompt_tokens")
        price = self._topology.gpu_hour_price
        rented = gpu_hours * price if gpu_hours is not None and price is not None else None
        known = [c for c in (asked, rented) if c is not None]
        return sum(known) if known else None


def _product(runtime: EngineRuntime) -> int:
    return runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel


def _e(value: float) -> str:
    """`8.19e9`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _at(s: Scene, amount: float, unit: str, rate: str) -> _Time:
    per_second = s.assume(rate)
    seconds = amount / per_second
    how = f"{per(amount)} {unit} at {per(per_second)}/s"
    return _Time(seconds, how, "assumed", ((rate, seconds),))


def _asked(s: Scene, work: Work) -> _Time:
    """An endpoint: its streams side by side; a scripted or recorded engine reads rows."""
    engine: EngineSettings = s.settings.engine
    if engine.kind != "openai":
        return _at(s, work.amount, "answers", "rows_per_second")
    stream, streams = s.assume("stream_tokens_per_second"), engine.runtime.concurrency
    seconds = (work.tokens or 0.0) / (stream * streams)
    how = f"{_e(work.tokens or 0.0)} tokens at {per(stream)}/s × {streams} requests in flight"
    priced = engine.runtime.input_price is not None or engine.runtime.output_price is not None
    rests = (("stream_tokens_per_second", seconds),)
    return _Time(seconds, how if priced else f"{how}; {NO_PRICE}", "assumed", rests)
