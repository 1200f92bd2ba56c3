"""Carries out a `klear eval`: problems, answers, verdicts, a table and results.json."""

import fcntl
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from configs.base import key_of
from configs.machine import load_machine
from eval.benchmarks import GRADER_VERSION
from eval.template_hash import template_hash
from flows.display import Terminal
from flows.eval_page import leaderboard_page, print_results
from flows.eval_problems import benchmark_problems
from flows.eval_request import EvalRequest
from tasks.benchmarking import Subject, run_benchmarks
from tasks.hub import why_not
from tasks.progress import listening
from tasks.store import SCRATCH, content_digest, file_sha256, scan

SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]


def evaluate_now(request: EvalRequest) -> int:
    """Evaluate, print the scores, return 0; raises what stops it."""
    subject = subject_of(request)
    out = request.out or _default_folder(request, subject)
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out), Terminal(Console(stderr=True)) as display:
        _same_evaluation(out, request, subject)
        display.started("problems", "")
        with listening(lambda *now: display.progress("problems", *now)):
            known = benchmark_problems(out, request, display)
        display.started("eval", str(out))
        with listening(lambda *now: display.progress("eval", *now)):
            results, costs = run_benchmarks(out, subject, known, request.evaluation.evaluate)
    print_results(results, costs, sys.stdout)
    print(f"results: {out / 'results.json'}")
    if page := leaderboard_page(results):
        (out / "leaderboard.html").write_text(page, encoding="utf-8")
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
    found = _described(engine.model, engine.revision)
    pinned = engine.model_copy(update={"revision": found.name})
    return Subject(pinned, engine.model, found.name, template_hash(found))


def _described(model: str, revision: str) -> Path:
    """The small files of a hub model, in a folder named by its commit; the engine fetches the
    weights."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=SMALL_FILES))
    except Exception as error:  # the hub raises its own kinds: not found, gated, no network
        raise ValueError(
            f"{model} (revision {revision}) cannot be fetched from the hub: {why_not(error)}"
        ) from error


def _identity(request: EvalRequest, subject: Subject) -> str:
    files = {name: file_sha256(file) for name, file in sorted(request.files.items())}
    engine = request.evaluation.engine.model_copy(update={"model": subject.model})
    evaluation = request.evaluation.model_copy(update={"engine": engine})
    meaning = [key_of(evaluation), files, request.limit, subject.checkpoint, subject.template,
               GRADER_VERSION]  # fmt: skip
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16]


def _default_folder(request: EvalRequest, subject: Subject) -> Path:
    name = re.sub(r"[^\w.-]+", "-", subject.model).strip("-.")
    return load_machine().home / "eval" / f"{name}-{_identity(request, subject)}"


def _same_evaluation(out: Path, request: EvalRequest, subject: Subject) -> None:
    """Refuse to mix two evaluations in one folder."""
    file, mine = out / SCRATCH / "evaluation", _identity(request, subject)
    if file.exists() and file.read_text() != mine:
        raise ValueError(
            f"--out {out} holds another evaluation (model, benchmarks, protocol or judge differ): "
            "name another folder"
        )
    file.parent.mkdir(exist_ok=True)
    file.write_text(mine)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another `klear eval` works in {out}") from None
        yield
