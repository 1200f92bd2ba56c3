"""From requests to a journal of samples, by whichever engine the settings name.

All that asks goes through `generate`: stages in their own process, or for a local model in a child
(`generate_job`). Heavy packages are imported only by the engine that needs them.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from configs.settings.engines import EngineSettings, Sampling
from eval.records import Sample
from training.engines.interface import Engine, EngineError, Request
from training.engines.journal import Journal, journal_path
from training.engines.without_model import RecordedEngine, ScriptedEngine
from training.launch.jobs import GenerateJob
from training.layout import MetricsFile, ProgressFile

SECONDS_PER_POINT = 2.0


class SpentApproved(Exception):
    """Answers have cost what was approved; asking stopped, and everything paid for is kept."""

    def __init__(self, cost: float, done: int) -> None:
        super().__init__(f"{done:,} answers have cost {cost:,.2f} and more are to come")
        self.cost = cost


def is_local(settings: EngineSettings) -> bool:
    """Whether the engine computes itself, and therefore belongs into a child process."""
    return settings.kind in ("vllm", "transformers")


def make_engine(settings: EngineSettings, sampling: Sampling, key: str | None = None) -> Engine:
    """The engine of `settings`; raises EngineError with the cure when it cannot start.

    `key` is that of an endpoint; None: from the environment variable that the settings name.
    """
    match settings.kind:
        case "scripted":
            return ScriptedEngine(settings, sampling)
        case "recorded":
            return RecordedEngine(settings, sampling)
        case "openai":
            from training.engines.endpoint import EndpointEngine

            return EndpointEngine(settings, sampling, key)
        case "vllm":
            from training.engines.vllm_engine import VLLMEngine

            return VLLMEngine(settings, sampling)
        case "transformers":
            from training.engines.transformers_engine import TransformersEngine

            return TransformersEngine(settings, sampling)


def generate(
    out: Path,
    requests: Sequence[Request],
    settings: EngineSettings,
    sampling: Sampling,
    report: Callable[[int, int, str], None],
    *,
    key: str | None = None,
    limit: float | None = None,
) -> float:
    """Answer what the journal in `out` lacks; returns the tokens a second of this run.

    Answers, tokens, cost and speed go to `report`, and every few seconds to
    `out/logs/metrics.jsonl`. Raises EngineError when some could not be answered. Once answers have
    cost `limit` no more are asked, those on their way are kept, and SpentApproved is raised if any
    is left.
    """
    runtime, part_of = settings.runtime, {r.problem_id: r.part for r in requests}
    with Journal(journal_path(out), sync_each=settings.kind == "openai") as journal:
        # the journal may hold answers beyond these requests: those of earlier rounds
        done, total = sum(r.key in journal for r in requests), len(requests)
        if done == total:
            return 0.0
        curves, waiting = MetricsFile(out, after_step=len(journal)), list[Sample]()
        report(done, total, "starting the engine")
        before, rate = journal.figures(runtime)["tokens"], 0.0

        def spent() -> bool:
            return limit is not None and journal.figures(runtime).get("cost", 0.0) >= limit

        def keep_all() -> None:
            while waiting:
                sample = waiting.pop()
                journal.append(sample, part_of[sample.problem_id])

        with make_engine(settings, sampling, key) as engine:
            began = told = time.monotonic()
            for sample in engine.answer(takewhile(lambda _: not spent(), requests), journal):
                if (sample.problem_id, sample.index) in journal:
                    continue  # of a batch that was redone
                done += 1
                waiting.append(sample)
                if sample.finish_reason != "error":  # it answers, so those before are wrong
                    keep_all()
                found, now = journal.figures(runtime), time.monotonic()
                rate = (found["tokens"] - before) / max(now - began, 1e-9)
                money = f", cost {found['cost']:,.2f}" if "cost" in found else ""
                with suppress(OSError):  # a full disk ends the run at the next answer
                    report(done, total, f"{rate:.0f} tok/s, {found['tokens']:,.0f} tokens{money}")
                    if now - told > SECONDS_PER_POINT or done == total:
                        told, found["tokens_per_second"] = now, rate
                        curves.append(len(journal), {f"generated/{n}": x for n, x in found.items()})
        if waiting and not len(journal) and is_local(settings):
            shortest = min(s.prompt_tokens for s in waiting)
            raise EngineError(
                f"{settings.model} has no room for an answer: the shortest of "
                f"{len(waiting):,} prompts has {shortest:,} tokens and fills its context"
            )
        keep_all()
        if spent() and any(r.key not in journal for r in requests):
            raise SpentApproved(journal.figures(runtime)["cost"], len(journal))
        return rate


def generate_job(job: GenerateJob) -> dict[str, float]:
    """Answer the requests of a child's job, JSON lines of `Request`; a second run of it goes on."""
    with job.requests.open("rb") as lines:
        requests = [Request.model_validate_json(line) for line in lines]
    report = ProgressFile(job.out).report
    return {"tokens_per_second": generate(job.out, requests, job.engine, job.sampling, report)}
