"""Judge: a Score for every Sample, in the same order, by the one judge of `eval.judge.judge`."""

from collections import Counter
from collections.abc import Iterator, Set
from itertools import islice, takewhile, tee
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.settings.judging import GRADER_VERSION, JudgeSettings
from ...eval.judge.ends import MACHINE_FAILED, by_its_end, judged_text
from ...eval.progress import report
from ...eval.records import NO_GOLD, Problem, Sample, Score
from ...eval.records.tables import Lookup, TableWriter, column, read_table
from ...training.launch.result_files import KEPT, SAMPLES, SCORES
from ..engine.stage import Metrics, stage
from ..store.store import SCRATCH, Artifact

if TYPE_CHECKING:  # its many patterns take a while to compile, which a cached run has no use for
    from ...eval.judge.judge import Judge


MOST_FAILED = 0.2
"""Share of answers on which the judge itself may fail: each is unscored. More: none is a result."""
_FAILED = f'"reason":"{MACHINE_FAILED}'.encode()


def score_samples(
    judge: "Judge", problems: Lookup[Problem], samples: Iterator[Sample]
) -> Iterator[Score]:
    """Scores in the order of `samples`. An answer that the engine failed to give is unscored.
    Samples stay in memory only while the judge holds them."""
    samples, ahead = tee(samples)

    def to_judge() -> Iterator[tuple[Problem, str, int]]:
        for sample in ahead:
            problem = problems.get(sample.problem_id)
            if problem is None:
                raise ValueError(f"a sample answers {sample.problem_id}, which is no problem here")
            yield problem, judged_text(sample), sample.index

    for sample, score in zip(samples, judge.judge_many(to_judge()), strict=True):
        yield by_its_end(score, sample)


def score_table(
    out: Path,
    samples: Path,
    problems: Path,
    settings: JudgeSettings,
    name: str = "scores",
    only: Set[str] | None = None,
) -> Iterator[Score]:
    """The scores of a table of samples (of the problems `only`), in order. Each is on file before
    the next; what a kill leaves is read again, without a last line that it tore."""
    chosen = (s for s in read_table(samples, Sample) if only is None or s.problem_id in only)
    total = sum(only is None or i in only for i in column(samples, "problem_id"))
    journal = out / SCRATCH / f"{name}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a+b") as file:
        file.seek(0)
        done, end, failures, reason = 0, 0, list[int](), ""
        for line in takewhile(lambda line: line.endswith(b"\n"), file):
            if _FAILED in line:
                failures.append(end)
                reason = Score.model_validate_json(line).reason
            done, end = done + 1, end + len(line)
        file.truncate(end)
        if done < total:
            from ...eval.judge.judge import Judge

            by_id = Lookup(problems, Problem)
            with Judge(settings) as judge:
                for score in score_samples(judge, by_id, islice(chosen, done, None)):
                    if score.reason.startswith(MACHINE_FAILED):
                        failures.append(file.tell())
                        reason = score.reason
                    file.write(score.model_dump_json().encode() + b"\n")
                    file.flush()
                    done += 1
                    report(done, total, name.replace("_", " "))
        if len(failures) > MOST_FAILED * total:
            file.truncate(failures[0])
            lost = f"{len(failures):,} of {total:,} answers could not be judged, the last because"
            again = "answers are kept: mend that and run again"
            raise RuntimeError(f"{lost} {reason}; {again}")
        file.seek(0)
        yield from map(Score.model_validate_json, file)


@stage(version=GRADER_VERSION, group="data")
def judge(out: Path, problems: Artifact, samples: Artifact, *, settings: JudgeSettings) -> Metrics:
    """Score every sample against its problem; resumes after the last score on file. Seconds are
    measurements, so the table has 0 there; their sum is a metric."""
    tables = samples.file(SAMPLES), problems.file(KEPT)
    verdicts: Counter[str] = Counter()
    correct, without_gold, seconds = 0, 0, 0.0
    with TableWriter(out / SCORES, Score) as writer:
        for score in score_table(out, *tables, settings):
            verdicts[score.verdict] += 1
            correct += bool(score.correct)
            without_gold += score.reason == NO_GOLD
            seconds += score.seconds
            writer.write(score.model_copy(update={"seconds": 0.0}))
    scored = writer.rows - verdicts["IE"]
    return {
        "scores": writer.rows,
        "unscored": verdicts["IE"],
        "not_judgeable": without_gold,
        "correct_share": correct / scored if scored else 0.0,
        **{f"verdict/{name}": n for name, n in sorted(verdicts.items())},
        "judge_seconds": seconds,
    }
