"""Data stages and judge on one core and on two.

    python tests/bench/bench_scaling.py [--rows 1000000] [--answers 600] [--rounds 1]

Collect (from JSONL files), near dedup, decontaminate and the judge, each with one worker on one
core and with two workers on two cores: the process and all below it may run nowhere else. The
results of both ways must agree.

Wall time says that only on a machine that does nothing else. So what counts is CPU time: on one
core all of it, one after the other; on two cores that of the main thread, which no worker shortens,
and after it half of the workers'. The least of some rounds each. Wall times stand beside it.

The last line is JSON: `ours` is how many times less that is on two cores, `ratio` that over the 1.7
that are asked for, `setup` has the seconds of each stage.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from bench_judge import answers_to, built_in_corpus
from bench_judge import seconds as below_and_own
from real_documents import documents, write_problems

from klear.configs.settings.data import DecontaminateSettings, DedupSettings, PartsRuntime
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.judge.judge import Judge
from klear.tasks.data.collect import collect
from klear.tasks.data.decontaminate import decontaminate
from klear.tasks.data.dedup import dedup
from klear.tasks.store.store import Artifact, content_digest, scan

ASKED = 1.7
FILES = 8
Work = Callable[[Path, int, "Clock"], Any]
"""(empty folder, workers, clock to stop at the end) → what must not depend on the workers."""


class Clock:
    """Seconds since it was made: of wall time, and of CPU as the cores would need them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        return time.monotonic(), time.thread_time(), time.process_time(), below_and_own()

    def stop(self) -> None:
        """While processes live: those of a PID namespace that is killed report nothing."""
        passed = [now - then for now, then in zip(self._now(), self._began, strict=True)]
        self.wall, main, own, everything = passed
        below = everything - own
        self.cpu = own + below if self._workers == 1 else main + below / self._workers


def stages(inputs: Path, texts: list[str], answers: int) -> dict[str, Work]:
    """The work of each stage, on files and tables that are made here."""
    lines = [json.dumps({"question": text, "answer": "1"}) for text in texts]
    for number in range(FILES):
        (inputs / f"{number}.jsonl").write_text("\n".join(lines[number::FILES]) + "\n")
    for name, some in (("problems", texts), ("benchmarks", texts[:1000])):
        (inputs / name).mkdir()
        write_problems(inputs / name / "kept.parquet", some)
    problems, held_out = (Artifact.of_folder(inputs / n) for n in ("problems", "benchmarks"))
    source = Source(
        name="documents", files=("*.jsonl",), prompt_field="question", answer_field="answer"
    )
    files = CollectSettings(root=str(inputs), sources=(source,))
    rows = PartsRuntime(rows_per_part=max(1, len(texts) // 16))

    def of(stage: Any, settings: Any, *read: Artifact, **more: Any) -> Work:
        def work(out: Path, workers: int, clock: Clock) -> str:
            runtime = settings.runtime.model_copy(update={"workers": workers})
            chosen = settings.model_copy(update={"runtime": runtime})
            stage.body(out, *read, settings=chosen, **more)
            clock.stop()
            return content_digest(scan(out))

        return work

    leaks = DecontaminateSettings(min_coverage=0.5, runtime=rows)
    return {
        "collect": of(collect, files, seed=0),
        "dedup": of(dedup, DedupSettings(near=True, runtime=rows), problems),
        "decontaminate": of(decontaminate, leaks, problems, held_out),
        "judge": judging(answers),
    }


def judging(answers: int) -> Work:
    items = answers_to(built_in_corpus(), answers)

    def work(_: Path, workers: int, clock: Clock) -> list[str]:
        with Judge(JudgeSettings(runtime=JudgeRuntime(workers=workers))) as judge:
            verdicts = [score.verdict for score in judge.judge_many(items)]
            clock.stop()
        return verdicts

    return work


def timed(work: Work, workers: int) -> tuple[Clock, Any]:
    """The time on as many cores as workers, and what was made."""
    every = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(every)[:workers])
        with tempfile.TemporaryDirectory() as out:
            clock = Clock(workers)
            result = work(Path(out), workers, clock)
            return clock, result
    finally:
        os.sched_setaffinity(0, every)


def told(seconds: dict[str, tuple[float, float]]) -> str:
    """Of each stage on one core and on two."""
    return ", ".join(f"{n} {a:.1f} → {b:.1f} ({a / b:.2f} ×)" for n, (a, b) in seconds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--answers", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed")
    del sys.modules["__main__"].__file__  # workers need nothing of what this file imports
    texts, kind = documents(options.rows)
    cpu: dict[str, tuple[float, float]] = {}
    wall: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in stages(Path(folder), texts, options.answers).items():
            ones, twos = list[Clock](), list[Clock]()
            for _ in range(options.rounds):
                (one, alone), (two, again) = timed(work, 1), timed(work, 2)
                assert alone == again, f"{name}: two workers made something else"
                ones.append(one)
                twos.append(two)
            cpu[name] = min(c.cpu for c in ones), min(c.cpu for c in twos)
            wall[name] = min(c.wall for c in ones), min(c.wall for c in twos)
            print(
                f"CPU s: {told({name: cpu[name]})}; wall s: {told({name: wall[name]})}", flush=True
            )
    one, two = (sum(seconds[i] for seconds in cpu.values()) for i in (0, 1))
    where = "Ray" if os.environ.get("KLEAR_RAY_ADDRESS") else "local processes"
    line = {
        "bench": "scaling",
        "ours": round(one / two, 3),
        "peer": {"asked": ASKED},
        "unit": "times less time on 2 cores than on 1",
        "ratio": round(one / two / ASKED, 3),
        "setup": f"{options.rows} rows ({kind}), {options.answers} programs of 16 tests; "
        f"{where}; CPU seconds: {told(cpu)}; wall seconds: {told(wall)}",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
