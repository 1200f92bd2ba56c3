"""Carries out a `klear eval`: problems, answers, verdicts, a table and results.json.

It is what the stage `evaluate` does, for any model. A benchmark of the hub is a result in the store
like any other: the next model is scored without a download (LiveCodeBench is gigabytes), and
without a network.
"""

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from configs.files import replace_text
from configs.machine import load_machine
from configs.settings.base import key_of
from configs.settings.evaluation import Evaluation as EvaluationSettings
from configs.settings.sources import CollectSettings, Source
from eval.benchmarks.benchmarks import GRADER_VERSION, BenchmarkResult, template_hash
from eval.benchmarks.metrics import upper_bound_of_zero
from eval.records import Problem
from eval.tables import read_table, write_table
from flows.cli.display import Terminal
from tasks.data.collect import collect
from tasks.data.hub import why_not
from tasks.models.benchmark_files import problems_of_file, source_of_files
from tasks.models.benchmarking import Subject, run_benchmarks
from tasks.report.page import Page, environment, fence
from tasks.report.results import Evaluation
from tasks.report.scores import TITLES, leaderboard
from tasks.stage.progress import Display, listening
from tasks.stage.run import Run, active
from tasks.store.shared import open_store
from tasks.store.store import SCRATCH, content_digest, file_sha256, scan

SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
KEPT = "kept.parquet"
COLUMNS = ("benchmark", "k", "avg@k", "over problems", "over samples", "pass@k", "maj@k",
           "problems", "cut", "tokens", "unscored")  # fmt: skip
from_hub = collect.named("benchmark")


@dataclass(frozen=True)
class EvalRequest:
    """A checked `klear eval`."""

    evaluation: EvaluationSettings
    files: Mapping[str, Path]
    """Source → local file; the others come from the hub."""
    limit: int | None
    """Problems of each source; None: all."""
    out: Path | None


def evaluate_now(request: EvalRequest) -> int:
    """Evaluate, print the scores, return 0; raises what stops it."""
    subject = subject_of(request)
    identity = _identity(request, subject)
    name = re.sub(r"[^\w.-]+", "-", subject.model).strip("-.")
    out = request.out or load_machine().home / "eval" / f"{name}-{identity}"
    with _alone(out, identity), Terminal(Console(stderr=True)) as display:
        display.started("problems", "")
        with listening(lambda *now: display.progress("problems", *now)):
            known = benchmark_problems(out / SCRATCH, request, display)
        display.started("eval", str(out))
        with listening(lambda *now: display.progress("eval", *now)):
            results, costs = run_benchmarks(out, subject, known, request.evaluation.evaluate)
    print(results_text(results, costs))
    print(f"results: {out / 'results.json'}")
    if {r.name for r in results} & set(TITLES):
        model = results[0].statement.model
        table = leaderboard([(model, Evaluation(model, tuple(results)))], "above the paper's")
        body = f"{table}\n\nProtocol:\n\n{fence(results_text(results, {}))}\n"
        page = Page("Leaderboard", f"{model} beside Table 1 of the paper", "", body)
        (out / "leaderboard.html").write_text(page.html(), encoding="utf-8")
        print(f"beside Table 1: {out / 'leaderboard.html'}")
    return 0


def subject_of(request: EvalRequest) -> Subject:
    """Who answers, by what it holds: a folder by its bytes, a hub model by its revision."""
    engine = request.evaluation.engine
    if engine.kind == "openai":
        where = urlsplit(engine.base_url).netloc
        return Subject(engine, engine.model, f"at {where}", "of the endpoint")
    folder = Path(engine.model)
    if folder.is_dir():
        name = folder.parent.name if folder.name == "checkpoint" else folder.name
        digest = content_digest(scan(folder))
        return Subject(engine, name, digest[:16], template_hash(folder))
    from huggingface_hub import snapshot_download

    try:  # the engine fetches the weights; the folder is named by the commit
        found = snapshot_download(
            engine.model, revision=engine.revision, allow_patterns=SMALL_FILES
        )
    except Exception as error:  # the hub raises its own kinds: not found, gated, no network
        model = f"{engine.model} (revision {engine.revision})"
        raise ValueError(f"{model} cannot be fetched from the hub: {why_not(error)}") from error
    commit = Path(found).name
    pinned = engine.model_copy(update={"revision": commit})
    return Subject(pinned, engine.model, commit, template_hash(Path(found)))


def _identity(request: EvalRequest, subject: Subject) -> str:
    """16 hex digits of all that the scores depend on."""
    files = {name: file_sha256(file) for name, file in sorted(request.files.items())}
    engine = request.evaluation.engine.model_copy(update={"model": subject.model})
    evaluation = request.evaluation.model_copy(update={"engine": engine})
    meaning = [key_of(evaluation), files, request.limit, subject.checkpoint, subject.template,
               GRADER_VERSION]  # fmt: skip
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16]


@contextmanager
def _alone(out: Path, identity: str) -> Iterator[None]:
    """Hold the folder; refuse to mix two evaluations in it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another `klear eval` works in {out}") from None
        holds = out / SCRATCH / "evaluation"
        if holds.exists() and holds.read_text() != identity:
            raise ValueError(
                f"--out {out} holds another evaluation (model, benchmarks, protocol or judge "
                "differ): name another folder"
            )
        replace_text(holds, identity)
        yield


def benchmark_problems(scratch: Path, request: EvalRequest, display: Display) -> list[Problem]:
    """The judgeable problems of every source, collected once for an evaluation."""
    path = scratch / "benchmark_problems.parquet"
    if not path.exists():
        rows: list[Problem] = []
        protocols = request.evaluation.evaluate.protocols
        for name in dict.fromkeys(p.source or p.name for p in protocols):
            file = request.files.get(name)
            work = scratch / "collect" / name
            found = _from_file(file, name, work) if file else _from_hub(name, display)
            judgeable = [p for p in found if p.judgeable]
            if not judgeable:
                raise ValueError(
                    f"{name}: none of its {len(found)} problems has an answer or tests"
                )
            rows += judgeable[: request.limit]
        write_table(path.with_suffix(".partial"), Problem, rows)
        path.with_suffix(".partial").replace(path)
    return list(read_table(path, Problem))


def _from_file(file: Path, name: str, work: Path) -> list[Problem]:
    if (own := problems_of_file(file, name)) is not None:
        return own
    source = source_of_files(name, [file.absolute()])
    work.mkdir(parents=True, exist_ok=True)
    collect.body(work, settings=CollectSettings(root="/", sources=(source,)), seed=0)
    return list(read_table(work / KEPT, Problem))


def _from_hub(name: str, display: Display) -> list[Problem]:
    with active(Run(store=open_store(load_machine()), display=display)):
        collected = from_hub(settings=CollectSettings(sources=(Source(use=name),)))
    return list(read_table(collected.file(KEPT), Problem))


def results_text(results: Sequence[BenchmarkResult], costs: Mapping[str, float]) -> str:
    """One row a benchmark, shares in percent with 95 % intervals; then all that makes the rows
    repeatable: protocol, windows, overlaps; and costs."""
    rows = [COLUMNS, *map(_row, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    zeros = {r.name: 100 * upper_bound_of_zero(r.problems) for r in results if r.avg == 0}
    plain = environment().overlay(autoescape=False, finalize=lambda v: "off" if v is None else v)
    protocol = plain.get_template("evaluation.txt").render(
        s=results[0].statement, results=results, zeros=zeros, costs=costs
    )
    return "\n".join([*lines, "", protocol.rstrip()])


def _row(r: BenchmarkResult) -> tuple[str, ...]:
    def percent(*shares: float | None) -> str:
        known = [f"{100 * share:.1f}" for share in shares if share is not None]
        return f"[{', '.join(known)}]" if len(known) > 1 else "".join(known)

    return (
        r.name,
        str(r.k),
        percent(r.avg),
        percent(r.ci_low, r.ci_high),
        percent(r.sample_low, r.sample_high),
        percent(r.pass_at_k),
        percent(r.majority_at_k),
        str(r.problems),
        f"{100 * r.truncation_rate:.1f} %",
        f"{r.mean_tokens:,.0f}",
        str(r.samples_unscored),
    )
