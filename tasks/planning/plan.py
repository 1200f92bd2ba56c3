"""What a run would do, stage by stage, why, and what it will take: time, tokens, GPU-hours, disk
and money, by measured rates where the store has them, else by FLOPs and named assumptions. A stage
whose inputs are all in the store has a key, so its result is there or not; those below one that
must compute compute too, unless the new rows turn out to be the old ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson

from ...configs.settings.base import MOST_SHOWN, Settings, first_few, flat
from ...configs.settings.data import SampleSettings
from ...configs.settings.engines import EngineRuntime, EngineSettings
from ...configs.settings.topology import Topology
from ...configs.settings.training import BaseModelSettings
from ...training.engines.generate import cost_of, is_local
from ...training.launch.result_files import PROGRESS
from ...training.sizing import facts_of_base, facts_of_model
from ..data.sources import GOLDS
from ..engine.cache import FORCED
from ..engine.run import Run
from ..engine.stage import Stage
from ..engine.why import NEVER, UNKNOWN, nearest, reason
from ..report.run_story import PlannedStage
from ..store.hardware import cores, gpus, split, this_machine
from ..store.store import Artifact
from .work import REPORTED, ForecastInput, PastResult, StoreHistory, Workload, cost_model_of

PARALLEL = ("tensor_parallel", "data_parallel")
ROWS_A_SECOND = 20_000.0  # Of a data stage on one core, where a store has measured none.
NO_MACHINES = Topology()
ROWS = ("kept", "samples")  # Counts of a result's rows, whichever it has.
ASSUMED = "assumed"  # Among the counts of a forecast: 1 where they rest on an assumption.


class Planner:
    """Looks at stages instead of computing them: `stages` holds what each would do, in order."""

    def __init__(
        self, run: Run, topology: Topology = NO_MACHINES, base: BaseModelSettings | None = None
    ) -> None:
        self.stages: list[PlannedStage] = []
        self._run, self._earlier = run, StoreHistory(run.store)
        self._forecaster = Forecaster(self._earlier, topology, base)

    def plan_stage(
        self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings
    ) -> Artifact:
        """The published result, or one without a digest, whose metrics are expected counts."""
        name, store = stage.name, self._run.store
        names = tuple(i.stage for i in inputs)
        unknown = [i.stage for i in inputs if i.digest == UNKNOWN]
        key = "" if unknown else stage.key(inputs, settings, self._run)
        result, why = store.find(name, key) if key else (None, "")
        if result and name not in self._run.force:
            past = PastResult(store.manifest(result), result.folder)
            kind = cost_model_of(stage.body.__name__)
            tokens = kind.done(past) if kind.unit == "model" else past.sum("tokens")
            cost = result.metrics.get("cost")
            figures = result.seconds, past.manifest.bytes, tokens or None, cost
            counts = {n: v for n, v in result.metrics.items() if n in (*ROWS, *GOLDS)}
            reused = PlannedStage(name, "reuse", "", *figures, inputs=names, counts=counts)
            self.stages.append(reused)
            return result
        line = self._forecaster.of(stage, inputs, settings)
        work = store.work(name, key)
        if result:
            line = replace(line, why=FORCED)
        elif key and work.exists():
            line = resumed(line, work, why or "was interrupted")
        else:
            earlier = (past.manifest for past in self._earlier.results_of(name))
            closest = nearest(earlier, stage.task(inputs, settings, self._run))
            differing = closest[1] if closest else []
            if unknown:
                why = f"after {', '.join(first_few(unknown))}"
                if differing and len(differing) <= MOST_SHOWN:  # more: another profile's
                    why = "; ".join([why, *differing])
            elif not why and closest:
                why = reason(differing)
            line = replace(line, why=why or NEVER)
        self.stages.append(replace(line, inputs=names))
        expected = dict(line.counts)
        return Artifact(stage=name, key=key, digest=UNKNOWN, folder=Path(), metrics=expected)


def resumed(line: PlannedStage, work: Path, why: str) -> PlannedStage:
    """Less is left to do by as much as a child process reported last before it ended."""
    try:
        progress = orjson.loads((work / PROGRESS).read_bytes())
        done, total = float(progress["done"]), float(progress["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return replace(line, action="resume", why=why)
    figures = {n: getattr(line, n) for n in ("seconds", "tokens", "gpu_hours", "cost")}
    share = line.counts.get(REPORTED, 1.0) * done / max(1.0, total)
    left = {n: v * (1.0 - share) for n, v in figures.items() if v is not None}
    return replace(line, action="resume", why=f"{why} at {done:,.0f} of {total:,.0f}", **left)


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
        facts, kind = None, cost_model_of(body)
        if self.base and (body == "base" or kind.unit == "model"):
            facts = facts_of_base(self.base)
        if isinstance(settings, SampleSettings) and is_local(settings.engine):
            facts = facts_of_model(settings.engine.model)
        s = ForecastInput(settings, inputs, next(iter(alike), None), facts, self.topology.assume)
        work = kind.work(s)
        done = kind.done(s.past) if s.past and body not in ("sft", "rl") else 0.0  # not weights
        assumed = bool(s.used or work.remark) or any(i.metrics.get(ASSUMED) for i in inputs)
        count = self._gpus(body, settings)
        near = sorted(alike, key=lambda p: sizes_apart(kind.done(p), work.amount))
        rate = next(filter(None, (self.rate(body, p, count) for p in near)), None)
        price = ""
        if isinstance(settings, SampleSettings) and settings.engine.kind == "openai":
            engine = settings.engine
            rate = self._endpoint(engine, alike)
            unpriced = f"none known of {engine.model} at {engine.base_url}"
            price = engine.prices.source if engine.prices else unpriced
        seconds = work.amount / rate if rate else self._by_flops(body, s, work, count)
        gpu_hours = seconds * count / 3600 if seconds is not None and count else None
        cost = (gpu_hours or 0.0) * (self.topology.gpu_hour_price or 0.0)
        if isinstance(settings, SampleSettings):
            cost += cost_of(settings.engine, work.prompt_tokens, work.tokens or 0.0) or 0.0
        size = s.past.manifest.bytes * work.amount / done if s.past and done else work.bytes
        figures = {"seconds": seconds, "bytes": size, "tokens": work.tokens, "gpu_hours": gpu_hours}
        figures |= {"cost": cost or None}
        amounts: Any = {n: v for n, v in figures.items() if v is not None and not math.isnan(v)}
        return PlannedStage(
            stage.name,
            **amounts,
            unknown=math.isnan(work.amount),
            assumptions=tuple(s.used),
            binds=work.remark,
            prices=price,
            assumed=assumed or not rate or bool(s.used),
            counts={**work.counts, ASSUMED: float(assumed)},
        )

    def comparable(self, body: str, stage: str, settings: Settings) -> list[PastResult]:
        """Earlier results whose settings say the same of speed, and that go back to the same base
        model, the newest first; of stages of the same kind where the stage itself has none."""
        wanted = _alike(body, settings.model_dump(mode="json"))
        earlier = self.history.results_of(*dict.fromkeys((stage, *cost_model_of(body).stages)))
        alike = [p for p in earlier if _alike(body, p.manifest.settings) == wanted]
        if cost_model_of(body).unit != "model" or self.base is None:
            return alike
        model = _alike("base", self.base.model_dump(mode="json"))
        bases = [(past, self.history.base_of(past.manifest)) for past in alike]
        return [p for p, base in bases if base and _alike("base", base.settings) == model]

    def rate(self, body: str, past: PastResult, gpus: int) -> float | None:
        """Units of work a second of an earlier result, on so many GPUs of the plan; None where it
        says nothing about the plan's machine. Of the data stages, only judging uses all cores."""
        hardware = past.manifest.hardware or this_machine()  # an older manifest does not say: here
        card = self.topology.gpu.lower().partition("-")[0] if self.topology.gpus else ""
        if gpus and not (card in hardware.lower() if card else hardware == this_machine()):
            return None
        seconds = past.seconds if body in ("sft", "rl") else past.manifest.seconds
        rate = cost_model_of(body).done(past) / seconds if seconds else 0.0
        devices = int(past.sum("processes")) or split(hardware)[0]
        runtime = {"distill": "engine.runtime", "evaluate": "engine_runtime"}.get(body)
        if runtime and gpus:
            rate = (body == "distill" and past.sum("tokens_per_second")) or rate
            devices = math.prod(int(past.settings[f"{runtime}.{n}"]) for n in PARALLEL)
        wanted = self.topology.cores_per_node if body == "judge" else gpus
        return rate * wanted / devices if wanted and self.topology.gpus else rate

    def _gpus(self, body: str, settings: Any) -> int:
        everything = self.topology.gpus or (split(gpus())[0] if gpus() else 0)
        if body in ("sft", "rl"):
            return (body == "rl" and self.topology.rl_gpus) or everything
        runtime: EngineRuntime | None = getattr(settings, "engine_runtime", None)
        if body == "distill" and is_local(settings.engine):
            runtime = settings.engine.runtime
        return min(math.prod(getattr(runtime, n) for n in PARALLEL), everything) if runtime else 0

    def _endpoint(self, engine: EngineSettings, alike: Sequence[PastResult]) -> float | None:
        """Tokens a second that an earlier result measured at the same endpoint; None without."""
        for past in alike:
            if past.settings.get("engine.base_url") == engine.base_url:
                each, most = past.sum("stream_tokens_per_second"), past.sum("requests_in_flight")
                if each and most:
                    return each * min(most, engine.runtime.concurrency or most)
                if rate := past.sum("tokens_per_second"):  # it does not stream
                    return rate
        return None

    def _by_flops(self, body: str, s: ForecastInput, work: Workload, count: int) -> float | None:
        """Seconds; None where nothing is known. A model takes 2·N FLOPs a token that it generates
        and 6·N one that it is trained on, which RL looks at first: 8·N."""
        kind = cost_model_of(body).unit
        unit = "model" if body == "distill" and is_local(s.settings.engine) else kind
        if body == "judge":
            return self._judging(s, work.amount)
        if unit != "model":  # nobody knows how fast an endpoint is
            return work.amount / ROWS_A_SECOND if unit == "rows" and work.tokens is None else None
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

    def _judging(self, s: ForecastInput, answers: float) -> float:
        workers = self.topology.cores_per_node or cores()
        return answers / (s.assume("judged_per_core") * workers)


def sizes_apart(one: float, other: float) -> float:
    """How often one amount of work is to be doubled to be the other, in whole numbers: the rate of
    a short stage is that of its start."""
    return abs(round(math.log2(one / other))) if one > 0 and other > 0 else math.inf


def _alike(body: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the settings say of speed, by dotted name, without the names of sources."""
    patterns = cost_model_of(body).alike
    named = flat(settings).items()
    return sorted({(p, str(v)) for n, v in named for p in patterns if fnmatchcase(n, p)})
