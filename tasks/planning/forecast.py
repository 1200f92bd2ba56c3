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
from tasks.planning.store_history import PastResult, StoreHistory, flat
from tasks.planning.work import KINDS, ONCE, Kind, StageContext, Work
from tasks.stage.stage import Stage
from tasks.store.hardware import cores, gpus, split, this_machine
from tasks.store.store import Artifact
from training.engines.generate import is_local
from training.engines.journal import cost_of
from training.sizing.model_facts import facts_of_base, facts_of_model

ASSUMED_COUNTS = "assumed"
"""Among the counts of a forecast: 1 where they rest on an assumption."""
OF_A_MODEL = ("sft", "rl", "evaluate")
Estimate = tuple[float | None, str]
"""Seconds, None where nothing is known, and the arithmetic behind them."""


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
    how: str = ""
    """The arithmetic behind the time."""
    assumptions: tuple[str, ...] = ()
    """Names in `configs.settings.topology.Assumptions`."""
    assumed: frozenset[str] = frozenset()
    """Names of the figures above that rest on an assumption."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What the result is expected to count, for the stages below."""

    @property
    def basis(self) -> str:
        """Of the time: `measured`, or `assumed`, partly or wholly."""
        return "assumed" if "seconds" in self.assumed else "measured"


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
        kind = KINDS.get(body, ONCE)
        alike = self.comparable(body, stage.name, settings)
        past = alike[0] if alike else None
        facts = facts_of_base(self._base) if self._base and body in ("base", *OF_A_MODEL) else None
        if isinstance(settings, SampleSettings) and is_local(settings.engine):
            facts = facts_of_model(settings.engine.model)
        assume = self._topology.assume
        s = StageContext(settings, inputs, past, self._earlier, facts, assume)
        work = kind.work(s)
        work_assumed = bool(s.used) or any(i.metrics.get(ASSUMED_COUNTS) for i in inputs)
        count = self._gpus(body, settings)
        measured, how = self._measured(body, stage.name, alike, work, count)
        seconds = measured
        if measured is None:
            seconds, how = self._by_assumptions(body, kind, s, work, count)
        gpu_hours = seconds * count / 3600 if seconds is not None and count else None
        cost = self._cost(s, work, gpu_hours)
        assumed = set[str]() if past else {"bytes"}
        if work_assumed:
            assumed |= {"seconds", "tokens", "gpu_hours", "bytes", "cost"}
        elif measured is None and seconds is not None:
            assumed |= {"seconds", "gpu_hours"} | ({"cost"} if gpu_hours else set())
        return PlannedStage(
            stage.name, seconds=seconds, bytes=work.bytes, tokens=work.tokens,
            gpu_hours=gpu_hours, cost=cost, how=how,
            assumptions=tuple(s.used), assumed=frozenset(assumed),
            counts={**work.counts, ASSUMED_COUNTS: float(work_assumed)},
        )  # fmt: skip

    def comparable(self, body: str, stage: str, settings: Settings) -> list[PastResult]:
        """Results of the same kind of work, those of the same stage first, the newest first."""
        names = dict.fromkeys((stage, *KINDS.get(body, ONCE).stages))
        wanted = _alike(body, flat(settings.model_dump(mode="json")))
        found = [p for p in self._earlier.of(*names) if _alike(body, p.settings) == wanted]
        if body not in OF_A_MODEL or self._base is None:
            return found
        model = _alike("base", flat(self._base.model_dump(mode="json")))
        bases = [(past, self._earlier.base_of(past)) for past in found]
        return [p for p, base in bases if base and _alike("base", flat(base.settings)) == model]

    def rate(self, body: str, past: PastResult, *, uses_gpus: bool) -> tuple[float, int] | None:
        """Units of work a second of an earlier result and the GPUs (cores where there are none)
        that did it; None where it says nothing about the plan's machine."""
        amount, hardware = KINDS.get(body, ONCE).done(past), past.manifest.hardware
        seconds = past.seconds if body in ("sft", "rl") else past.manifest.seconds
        if not amount or not seconds:
            return None
        card = self._topology.gpu.lower().partition("-")[0] if self._topology.gpus else ""
        same = card in hardware.lower() if card else hardware in ("", this_machine())
        if uses_gpus and not same:
            return None
        devices = split(hardware or this_machine())[0]  # an older manifest does not say: here
        if body == "distill" and uses_gpus:
            devices = _product(EngineRuntime.model_validate(past.tree["engine"]["runtime"]))
        devices = int(past.metrics.get("processes", devices))  # over several nodes
        engine = past.metrics.get("tokens_per_second") if body == "distill" else None
        return engine or amount / seconds, devices

    def _gpus(self, body: str, settings: Any) -> int:
        """GPUs that the stage keeps busy; 0: none."""
        everything = self._topology.gpus or (split(gpus())[0] if gpus() else 0)
        match body:
            case "distill" if is_local(settings.engine):
                return min(_product(settings.engine.runtime), everything)
            case "evaluate":
                return min(_product(settings.engine_runtime), everything)
            case "sft":
                return everything
            case "rl":
                apart = everything if settings.engine == "vllm_server" else 0
                training = self._topology.rl_gpus or everything
                return min(training + (server_gpus(settings) or apart), everything)
            case _:
                return 0

    def _measured(
        self, body: str, stage: str, alike: list[PastResult], work: Work, count: int
    ) -> Estimate:
        """By the comparable result, of the same stage if there is one, that is nearest in size:
        starting takes a while whatever the size.

        Of the data stages, only judging is spread over the cores of a node.
        """
        rated = [(p, r) for p in alike if (r := self.rate(body, p, uses_gpus=count > 0))]
        if not rated:
            return None, ""
        done = KINDS.get(body, ONCE).done

        def distance(rated: tuple[PastResult, Any]) -> tuple[bool, float]:
            times = max(done(rated[0]), 1.0) / max(work.amount, 1.0)
            return rated[0].manifest.stage != stage, abs(math.log(times))

        past, (per_second, devices) = min(rated, key=distance)
        where = f" on {past.manifest.hardware}" if past.manifest.hardware else ""
        how = f"{per(work.amount)} {work.unit}, {per(per_second)} {work.unit}/s measured in "
        how += f"{past.name}{where}"
        wanted = self._topology.cores_per_node if body == "judge" else count
        if not wanted or not self._topology.gpus or wanted == devices:
            return work.amount / per_second, how
        return work.amount / (per_second * wanted / devices), f"{how} × {wanted} / {devices}"

    def _by_assumptions(
        self, body: str, kind: Kind, s: StageContext, work: Work, count: int
    ) -> Estimate:
        if body == "judge":
            return self._judging(s, work.amount)
        if body == "distill" and s.settings.engine.kind == "openai":
            stream, runtime = s.assume("stream_tokens_per_second"), s.settings.engine.runtime
            how = f"{_e(work.amount)} tokens at {per(stream)}/s × {runtime.concurrency} requests"
            priced = runtime.input_price is not None or runtime.output_price is not None
            how += "" if priced else "; no price is set (engine.runtime)"
            return work.amount / (stream * runtime.concurrency), how
        if body in OF_A_MODEL or (body == "distill" and is_local(s.settings.engine)):
            return self._by_flops(body, s, work, count)
        if not kind.on_a_core:
            return None, "not counted: never measured"
        how = f"{per(work.amount)} {work.unit} at {per(kind.on_a_core)}/s"
        return work.amount / kind.on_a_core, how

    def _judging(self, s: StageContext, answers: float) -> tuple[float, str]:
        workers, per_core = self._topology.cores_per_node or cores(), s.assume("judged_per_core")
        how = f"{per(answers)} answers at {per(per_core)}/s × {workers} cores"
        return answers / (per_core * workers), how

    def _by_flops(self, body: str, s: StageContext, work: Work, count: int) -> Estimate:
        """2·N FLOPs a token that is generated or looked at, 6·N a token that is trained on."""
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
            if own and getattr(s.assumptions, own) is not None:
                rate = s.assume(own)
                text = f"{what} {_e(tokens)} tokens at {per(rate)}/s × {on} GPUs"
                return terms.append((tokens / (rate * on), text))
            mfu = s.assume(share)
            text = f"{what} {factor}·{_e(n)}·{_e(tokens)} at {mfu:.0%} of {on} × {tflops:g} TFLOP/s"
            return terms.append((factor * n * tokens / (tflops * 1e12 * on * mfu), text))

        if body != "sft":
            add("generate", 2, work.tokens, "generate_mfu", generating, "generated_per_gpu")
        if body == "rl":
            seconds, how = self._judging(s, work.counts["rollouts"])
            terms.append((seconds, f"judge {how}"))
            s.assume("prompt_tokens")
            add("old log-probabilities", 2, work.trained_tokens, "forward_mfu", training)
        if body in ("sft", "rl"):
            add("train", 6, work.trained_tokens, "train_mfu", training, "trained_per_gpu")
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


def per(value: float) -> str:
    """A rate with three digits: `7,730`, `0.142`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _alike(body: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the settings (by dotted name) say of speed, without the names of sources."""
    patterns = KINDS.get(body, ONCE).alike
    return sorted({(p, str(v)) for n, v in settings.items() for p in patterns if fnmatchcase(n, p)})


def _product(runtime: EngineRuntime) -> int:
    return runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel


def _e(value: float) -> str:
    """`8.19e9`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
