"""Asking an engine: every answer on disk before the next; tokens and cost as they grow."""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineSettings
from eval.records import Problem
from tasks.stage.child import ChildFailed, run_child
from tasks.stage.progress import report
from tasks.store.store import SCRATCH
from training.engines.figures import GenerationStats
from training.engines.interface import EngineError, Key, Request, request_seed
from training.engines.journal import Journal, journal_path
from training.engines.make import is_local, make_engine
from training.launch.jobs import GenerateJob


def api_key(engine: EngineSettings) -> str | None:
    """The value of the Prefect Secret block `api_key_block`; None: the environment variable counts.

    Raises EngineError that names the block when it does not exist or cannot be read.
    """
    if engine.kind != "openai" or not engine.api_key_block:
        return None
    from prefect.blocks.system import Secret  # seconds, and most runs need no block

    try:
        block = Secret.load(engine.api_key_block, _sync=True)  # type: ignore[call-arg]
    except Exception as error:  # no server, no block, a block of another kind
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"the Prefect Secret block {engine.api_key_block!r} cannot be read ({first}): create "
            "it in the UI under Blocks, or name an environment variable by api_key_env"
        ) from None
    return str(block.get())  # type: ignore[union-attr]


SECONDS_PER_REPORT = 0.2


class SpentApproved(Exception):
    """Answers have cost what was approved; asking stopped, and everything paid for is kept."""

    def __init__(self, cost: float, done: int) -> None:
        super().__init__(f"{done:,} answers have cost {cost:,.2f} and more are to come")
        self.cost = cost


class Plan(Sequence[Request]):
    """The requests of a stage, made when they are asked for: `indices` of every problem's."""

    def __init__(self, problems: Sequence[Problem], indices: range, seed: int) -> None:
        self.problems, self.indices, self.seed = problems, indices, seed

    def __len__(self) -> int:
        return len(self.problems) * len(self.indices)

    def __getitem__(self, place: int) -> Request:  # type: ignore[override]
        problem, index = divmod(range(len(self))[place], len(self.indices))
        return self._request(self.problems[problem], self.indices[index])

    def __iter__(self) -> Iterator[Request]:
        for problem in self.problems:
            for index in self.indices:
                yield self._request(problem, index)

    def _request(self, p: Problem, index: int) -> Request:
        seed = request_seed(self.seed, p.id, index)
        return Request(problem_id=p.id, index=index, prompt=p.prompt, seed=seed, part=p.source)

    def sample_keys(self) -> Iterator[Key]:
        return ((p.id, i) for p in self.problems for i in self.indices)


def ask(
    out: Path,
    requests: Sequence[Request],
    settings: SampleSettings,
    seed: int,
    limit: float | None = None,
) -> float:
    """Answer what the journal in `out` lacks; returns the tokens a second of this run.

    Raises EngineError when some could not be answered, SpentApproved when an endpoint's answers
    have cost `limit`. Finished answers are kept in every case. With a `limit` of 0 no engine is
    started: every answer is on file, or SpentApproved is raised.
    """
    if limit == 0:
        return _only_on_file(out, requests)
    if is_local(settings.engine):
        return ask_in_child(out, requests, settings, seed)
    return ask_in_process(out, requests, settings, limit)


def _only_on_file(out: Path, requests: Sequence[Request]) -> float:
    with Journal(journal_path(out)) as journal:
        if any(r.key not in journal for r in requests):
            raise SpentApproved(0.0, len(journal))
    return 0.0


def ask_in_process(
    out: Path, requests: Sequence[Request], settings: SampleSettings, limit: float | None = None
) -> float:
    """Ask a scripted, recorded or endpoint engine."""
    with Journal(journal_path(out), sync_each=settings.engine.kind == "openai") as journal:
        done = sum(r.key in journal for r in requests)
        if done == len(requests):
            return 0.0
        figures = GenerationStats(out, settings.engine.runtime, journal.everything(), requests)

        def spent() -> bool:
            return limit is not None and (figures.cost() or 0.0) >= limit

        # Once the limit is reached no more are asked; those on their way are waited for and kept.
        left = (r for r in requests if r.key not in journal)
        missing = takewhile(lambda _: not spent(), left)
        last = time.monotonic()
        with make_engine(settings.engine, settings.sampling, api_key(settings.engine)) as engine:
            figures.start()
            try:
                for place, sample in enumerate(engine.answer(missing), done + 1):
                    journal.append(sample)
                    figures.add(sample)
                    if time.monotonic() - last > SECONDS_PER_REPORT:
                        last = time.monotonic()
                        report(place, len(requests), figures.note())
            finally:
                figures.write()
        if spent() and any(r.key not in journal for r in requests):
            raise SpentApproved(figures.cost() or 0.0, figures.samples)
    return figures.tokens_per_second


def ask_in_child(
    out: Path, requests: Sequence[Request], settings: SampleSettings, seed: int
) -> float:
    """Ask a local model, in a supervised process of its own."""
    with Journal(journal_path(out)) as journal:
        if all(r.key in journal for r in requests):
            return 0.0
    file = out / SCRATCH / "requests.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(r.model_dump_json() + "\n" for r in requests)
    job = GenerateJob(
        out=out, engine=settings.engine, sampling=settings.sampling, requests=file, seed=seed
    )
    try:
        run_child(job, out)
    except ChildFailed as error:
        raise _in_one_line(out, error) from error
    with Journal(journal_path(out)) as journal:
        missing = sum(r.key not in journal for r in requests)
    if missing:
        raise EngineError(
            f"the engine ended without {missing:,} of {len(requests):,} answers and named no "
            f"error: see {out / 'logs' / 'child.log'}; finished answers are kept"
        )
    return _speed(out)


def _in_one_line(out: Path, error: ChildFailed) -> Exception:
    """What the engine itself said last, if it did; else the error with the end of the log."""
    log = out / "logs" / "child.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = next((line for line in reversed(lines) if line.strip()), "")
    name, _, message = said.partition(": ")
    own = name.endswith(EngineError.__name__) and message in str(error)
    return EngineError(message) if own else error


def _speed(out: Path) -> float:
    try:
        result = json.loads((out / SCRATCH / "result.json").read_text())
        return float(result["tokens_per_second"])
    except (OSError, ValueError, KeyError):
        return 0.0
