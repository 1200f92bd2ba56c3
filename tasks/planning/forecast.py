"""What a stage will take: time, tokens, GPU-hours, disk and money, by measured rates where the
store has them, else by FLOPs and named assumptions, else not at all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from klear.configs.settings.base import Settings, flat
from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime
from klear.configs.settings.topology import Topology
from klear.configs.settings.training import BaseModelSettings
from klear.tasks.planning.history import PastResult, StoreHistory
from klear.tasks.planning.work import KINDS, OF_A_MODEL, Known, Work, kind_of
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.stage.stage import Stage
from klear.tasks.store.hardware import cores, gpus, split, this_machine
from klear.tasks.store.store import Artifact
from klear.training.engines.generate import cost_of, is_local
from klear.training.sizing import facts_of_base, facts_of_model

PARALLEL = ("tensor_parallel", "data_parallel")
ROWS_A_SECOND = 20_000.0
"""Of a data stage on one core, where a store has measured none."""
NO_MACHINES = Topology()
ASSUMED = "assumed"
"""Among the counts of a forecast: 1 where they rest on an assumption."""


@dataclass(frozen=True)
class Forecaster:
    """Forecasts of the stages of one run, on the machines that its topology names."""

    history: StoreHistory
    topology: Topology = NO_MACHINES
    base: BaseModelSettings | None = None

    def of(self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings) -> PlannedStage:
        """A stage whose work nobody has described takes what its newest result took."""
        body = stage.body.__name__
        alike = self.comparable(body, stage.name, settings)
        facts = None
        if self.base and body in ("base", *OF_A_MODEL):
            facts = facts_of_base(self.base)
        if isinstance(settings, SampleSettings) and is_local(settings.engine):
            facts = facts_of_model(settings.engine.model)
        s = Known(settings, inputs, next(iter(alike), None), facts, self.topology.assume)
        work = kind_of(body).work(s)
        assumed = bool(s.used) or any(i.metrics.get(ASSUMED) for i in inputs)
        count = self._gpus(body, settings)
        rate = next(filter(None, (self.rate(body, p, count) for p in alike)), None)
        seconds = work.amount / rate if rate else self._by_assumptions(body, s, work, count)
        gpu_hours = seconds * count / 3600 if seconds is not None and count else None
        return PlannedStage(
            stage.name,
            seconds=seconds,
            bytes=work.bytes,
            tokens=work.tokens,
            gpu_hours=gpu_hours,
            cost=self._cost(settings, work, gpu_hours),
            assumptions=tuple(s.used),
            assumed=assumed or not rate,
            counts={**work.counts, ASSUMED: float(assumed)},
        )

    def comparable(self, body: str, stage: str, settings: Settings) -> list[PastResult]:
        """Earlier results whose settings say the same of speed, and that go back to the same base
        model, the newest first; of stages of the same kind where the stage itself has none."""
        wanted = _alike(body, settings.model_dump(mode="json"))
        earlier = self.history.of(*dict.fromkeys((stage, *kind_of(body).stages)))
        found = [p for p in earlier if _alike(body, p.manifest.settings) == wanted]
        if body not in OF_A_MODEL or self.base is None:
            return found
        model = _alike("base", self.base.model_dump(mode="json"))
        bases = [(past, self.history.base_of(past.manifest)) for past in found]
        return [p for p, base in bases if base and _alike("base", base.settings) == model]

    def rate(self, body: str, past: PastResult, gpus: int) -> float | None:
        """Units of work a second of an earlier result, on so many GPUs of the plan; None where it
        says nothing about the plan's machine. Of the data stages, only judging is spread over the
        cores of a node."""
        hardware = past.manifest.hardware or this_machine()  # an older manifest does not say: here
        card = self.topology.gpu.lower().partition("-")[0] if self.topology.gpus else ""
        if gpus and not (card in hardware.lower() if card else hardware == this_machine()):
            return None
        seconds = past.seconds if body in ("sft", "rl") else past.manifest.seconds
        rate = kind_of(body).done(past) / seconds if seconds else 0.0
        devices = int(past.sum("processes")) or split(hardware)[0]
        if body == "distill" and gpus:
            rate = past.sum("tokens_per_second") or rate
            devices = math.prod(int(past.settings[f"engine.runtime.{n}"]) for n in PARALLEL)
        wanted = self.topology.cores_per_node if body == "judge" else gpus
        return rate * wanted / devices if wanted and self.topology.gpus else rate

    def _gpus(self, body: str, settings: Any) -> int:
        """GPUs that the stage keeps busy; 0: none."""
        everything = self.topology.gpus or (split(gpus())[0] if gpus() else 0)
        if body in ("sft", "rl"):
            return (body == "rl" and self.topology.rl_gpus) or everything
        runtime: EngineRuntime | None = None
        if body == "evaluate":
            runtime = settings.engine_runtime
        elif body == "distill" and is_local(settings.engine):
            runtime = settings.engine.runtime
        return min(math.prod(getattr(runtime, n) for n in PARALLEL), everything) if runtime else 0

    def _by_assumptions(self, body: str, s: Known, work: Work, count: int) -> float | None:
        """Seconds; None where nothing is known."""
        if body == "judge":
            return self._judging(s, work.amount)
        if body == "distill" and s.settings.engine.kind == "openai":
            streams = s.settings.engine.runtime.concurrency
            return work.amount / (s.assume("stream_tokens_per_second") * streams)
        if body in OF_A_MODEL or (body == "distill" and is_local(s.settings.engine)):
            return self._by_flops(body, s, work, count)
        return work.amount / ROWS_A_SECOND if body in KINDS and body != "base" else None

    def _judging(self, s: Known, answers: float) -> float:
        workers = self.topology.cores_per_node or cores()
        return answers / (s.assume("judged_per_core") * workers)

    def _by_flops(self, body: str, s: Known, work: Work, count: int) -> float | None:
        """2·N FLOPs a token that is generated, 6·N one that is trained on, which RL looks at first:
        8·N."""
        peak = self.topology.card.tflops * 1e12 * count
        if not peak or s.facts is None or work.tokens is None:
            return None
        n, seconds = s.facts.parameters, 0.0
        if body != "sft":
            seconds += 2 * n * work.tokens / (peak * s.assume("generate_mfu"))
        if body == "rl":
            s.assume("prompt_tokens")
            seconds += self._judging(s, work.counts["rollouts"])
        if work.trained_tokens:
            flops = n * (8 if body == "rl" else 6) * work.trained_tokens
            seconds += flops / (peak * s.assume("train_mfu"))
        return seconds

    def _cost(self, settings: Settings, work: Work, gpu_hours: float | None) -> float | None:
        """Money: tokens at the engine's prices and GPU-hours at the topology's."""
        asked = paid = None
        if isinstance(settings, SampleSettings):
            asked = cost_of(settings.engine.runtime, work.prompt_tokens, work.tokens or 0.0)
        if gpu_hours is not None and self.topology.gpu_hour_price is not None:
            paid = gpu_hours * self.topology.gpu_hour_price
        return None if asked is None and paid is None else (asked or 0.0) + (paid or 0.0)


def _alike(body: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the settings say of speed, by dotted name, without the names of sources."""
    patterns = kind_of(body).alike
    named = flat(settings, lists=True).items()
    return sorted({(p, str(v)) for n, v in named for p in patterns if fnmatchcase(n, p)})
