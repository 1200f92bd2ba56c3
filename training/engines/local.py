"""Generation in the child process: requests from a file, samples to a journal, one at a time.

Files of a job, all below `job.out`: the requests are JSON lines of `Request`; finished samples go
to `.resume/samples.jsonl`; progress to `.resume/progress.json`, curves to `logs/metrics.jsonl`. A
second run of the same job answers what the journal lacks.
"""

from eval.records import Sample
from training.engines.figures import GenerationStats
from training.engines.interface import EngineError, Request
from training.engines.journal import Journal, journal_path
from training.engines.make import make_local_engine
from training.launch.jobs import GenerateJob
from training.layout import ProgressFile


def generate_job(job: GenerateJob) -> dict[str, float]:
    """Answer every request of the job; returns what was generated in this run and how fast."""
    with job.requests.open("rb") as lines:
        requests = [Request.model_validate_json(line) for line in lines]
    with Journal(journal_path(job.out)) as journal:
        # The journal may hold answers beyond these requests: those of earlier rounds.
        before = done = sum(r.key in journal for r in requests)
        progress = ProgressFile(job.out)
        progress.report(done, len(requests), "starting the engine")
        if done == len(requests):
            return {"new_samples": 0.0, "tokens_per_second": 0.0}
        figures = GenerationStats(job.out, job.engine.runtime, journal.everything(), requests)
        too_long = list[Sample]()
        with make_local_engine(job.engine, job.sampling) as engine:
            figures.start()
            for sample in engine.answer(requests, journal):
                if sample.finish_reason == "error":
                    too_long.append(sample)
                elif (sample.problem_id, sample.index) not in journal:  # else of a batch redone
                    journal.append(sample)
                    figures.add(sample)
                    done += 1
                    progress.report(done, len(requests), figures.note())
        if too_long and not len(journal):
            shortest = min(s.prompt_tokens for s in too_long)
            raise EngineError(
                f"{job.engine.model} has no room for an answer: the shortest of "
                f"{len(too_long):,} prompts has {shortest:,} tokens and fills its context"
            )
        for sample in too_long:
            journal.append(sample)
        figures.write()
    return {"new_samples": float(done - before), "tokens_per_second": figures.tokens_per_second}
