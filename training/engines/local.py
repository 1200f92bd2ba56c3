"""Generation in the child process: requests from a file, samples to a journal, one at a time.

Files of a job, all below `job.out`: the requests are JSON lines of `Request`; finished samples go
to `.resume/samples.jsonl`; progress to `.resume/progress.json`, curves to `logs/metrics.jsonl`. A
second run of the same job answers what the journal lacks.
"""

from collections.abc import Iterator
from pathlib import Path

from eval.records import Sample
from training.engines.figures import Figures, FiguresFile, parts_of
from training.engines.interface import EngineError, LocalEngine, Request
from training.engines.journal import Journal, Key, finished_keys
from training.engines.make import make_local_engine
from training.jobs import GenerateJob
from training.progress_files import ProgressFile


def journal_path(out: Path) -> Path:
    return out / ".resume" / "samples.jsonl"


def read_requests(path: Path) -> list[Request]:
    with path.open("rb") as lines:
        return [Request.model_validate_json(line) for line in lines]


def generate_job(job: GenerateJob) -> dict[str, float]:
    """Answer every request of the job; returns what was generated in this run and how fast."""
    if job.engine.runtime.data_parallel > 1:
        from training.engines.replicas import generate_in_replicas

        return generate_in_replicas(job)
    requests = read_requests(job.requests)
    asked = {(r.problem_id, r.index) for r in requests}
    done = finished_keys(job.done) & asked if job.done else set[Key]()
    progress = ProgressFile(job.out)
    with Journal(journal_path(job.out)) as journal:
        take_over(job.out, journal)
        parts = parts_of(job.out, requests)
        figures = Figures(job.engine.runtime, journal.everything(), parts)
        # The journals may hold answers beyond these requests: those of earlier rounds.
        done |= {key for key in asked if key in journal}
        progress.report(len(done), len(asked), "starting the engine")
        if len(done) < len(asked):
            points, too_long = FiguresFile(job.out, figures), list[Sample]()
            with make_local_engine(job.engine, job.sampling) as engine:
                figures.start()
                for batch in our_batches(engine, requests, job):
                    todo = [r for r in batch if (r.problem_id, r.index) not in done]
                    if not todo:
                        continue
                    for sample in engine.answer(batch if engine.whole_batches else todo):
                        if sample.finish_reason == "error":
                            too_long.append(sample)
                            continue
                        figures.add(sample, again=(sample.problem_id, sample.index) in journal)
                        journal.append(sample)
                        done.add((sample.problem_id, sample.index))
                        progress.report(len(done), len(asked), figures.note())
                        points.now_and_then()
            _keep_too_long(too_long, journal, job)
            points.write()
    return {
        "new_samples": float(figures.whole.new_samples),
        "new_tokens": float(figures.whole.new_tokens),
        "tokens_per_second": figures.tokens_per_second,
    }


def _keep_too_long(samples: list[Sample], journal: Journal, job: GenerateJob) -> None:
    """Mark prompts that fill the context as errors, unless none fits: then the model is wrong."""
    if samples and not len(journal) and job.done is None:
        shortest = min(s.prompt_tokens for s in samples)
        raise EngineError(
            f"{job.engine.model} has no room for an answer: the shortest of {len(samples):,} "
            f"prompts has {shortest:,} tokens and fills its context"
        )
    for sample in samples:
        journal.append(sample)


def take_over(out: Path, journal: Journal) -> None:
    """Keep what replicas of an earlier run had finished, however many there were."""
    for left in sorted((out / ".resume").glob("replica-*")):
        with Journal(journal_path(left)) as theirs:
            for sample in theirs.everything():
                journal.append(sample)


def our_batches(
    engine: LocalEngine, requests: list[Request], job: GenerateJob
) -> Iterator[list[Request]]:
    """The batches of this replica: whole ones in turn where a batch must stay together, so that
    the number of replicas changes no sample."""
    if engine.whole_batches:
        for number, batch in enumerate(engine.batches(requests)):
            if number % job.replicas == job.replica:
                yield batch
        return
    yield from engine.batches(requests[job.replica :: job.replicas])
