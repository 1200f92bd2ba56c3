"""What `klear eval` does beyond the stage `evaluate`: any model, and benchmarks from any file.

Both parts are stages: a benchmark is collected once, and the scores lie in the store beside those
of a run.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.settings.engines import EngineSettings
from ...configs.settings.evaluation import WITH_FORMAT, Evaluation
from ...configs.settings.judging import GRADER_VERSION
from ...configs.settings.sources import CollectSettings, Source
from ...eval.benchmarks.benchmarks import BenchmarkResult
from ...eval.benchmarks.metrics import upper_bound_of_zero
from ...eval.records import Problem, Rejected
from ...eval.records.tables import read_table
from ...eval.rows.reading import reading_line, rejected_lines
from ...training.engines.endpoint import described
from ...training.engines.generate import answer_places, journal_path
from ...training.launch.result_files import CHECKPOINT, KEPT, REJECTED, chat_file
from ..answers.distill import api_key
from ..data.collect import SOURCES, collect
from ..data.sources import why_not
from ..engine.run import current_run
from ..engine.stage import Metrics, stage
from ..report.page import render_text
from ..store.store import SCRATCH, Artifact, content_digest, scan
from .evaluate import Subject, metrics_of, run_benchmarks, spent, template_of

SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
benchmark = collect.named("benchmark")


@stage(version=1 + GRADER_VERSION, group="evaluation")
def eval_model(out: Path, *collected: Artifact, settings: Evaluation) -> Metrics:
    """What `evaluate` writes, of any model on benchmarks that were collected. Answers of an attempt
    that ended early are kept, unless the run is forced: an endpoint may serve other weights by now
    and say nothing of it."""
    run, journal = current_run(), journal_path(out)
    if journal.exists():
        since = datetime.fromtimestamp(journal.stat().st_mtime, UTC)
        if eval_model.name in run.force and since < run.began:
            shutil.rmtree(out / SCRATCH)
        elif settings.engine.kind == "openai":
            text = "%s goes on: %s answers are of %s UTC; --force drops them (other weights?)"
            at, number = f"{since:%Y-%m-%d %H:%M}", len(answer_places(out))
            logging.getLogger("klear").warning(text, settings.engine.base_url, number, at)
    chosen: dict[str, list[Problem]] = {}
    for problem in (p for a in collected for p in read_table(a.file(KEPT), Problem)):
        problems = chosen.setdefault(problem.source, [])
        if problem.judgeable and len(problems) != settings.limit:
            problems.append(problem)
    for name, problems in chosen.items():
        if not problems:
            raise ValueError(f"{name}: none of its problems has an answer or tests")
    subject = Subject(settings.engine, settings.model, settings.checkpoint, settings.template)
    everything = [p for problems in chosen.values() for p in problems]
    results, speed = run_benchmarks(out, subject, everything, settings.evaluate)
    return {**metrics_of(results), **spent(settings.engine, [out], speed)}


def identified(evaluation: Evaluation) -> Evaluation:
    """With the model named by what it holds: a folder by its bytes, a hub model by its commit. A
    checkpoint that says how it was asked in training is asked so."""
    engine = evaluation.engine
    folder, identity = Path(engine.model), dict[str, Any](model=engine.model)
    if engine.kind == "openai":
        identity |= {"checkpoint": endpoint_description(engine), "template": "of the endpoint"}
        return evaluation.model_copy(update=identity)
    if folder.is_dir():
        name = folder.parent.name if folder.name == CHECKPOINT else folder.name
        identity |= {"model": name, "checkpoint": content_digest(scan(folder))[:16]}
    else:  # a hub model's folder is named by the commit; the engine fetches the weights
        from huggingface_hub import snapshot_download

        revision = engine.revision
        try:
            snapshot = snapshot_download(
                engine.model, revision=revision, allow_patterns=SMALL_FILES
            )
        except Exception as error:  # the hub raises its own kinds: not found, gated, no network
            model = f"{engine.model} (revision {revision})"
            raise ValueError(f"{model} cannot be fetched from the hub: {why_not(error)}") from error
        folder = Path(snapshot)
        identity["engine"] = engine.model_copy(update={"revision": folder.name})
        identity["checkpoint"] = folder.name
    identity["template"] = template_of(engine, folder)
    if own := chat_file(folder).get("question"):
        protocols = tuple(
            p.model_copy(update={"question": own}) if p.question == WITH_FORMAT else p
            for p in evaluation.evaluate.protocols
        )
        identity["evaluate"] = evaluation.evaluate.model_copy(update={"protocols": protocols})
    return evaluation.model_copy(update=identity)


def endpoint_description(engine: EngineSettings) -> str:
    """The address of an endpoint, and what it says of the model in its list of models. Raises
    EngineError where it cannot be reached."""
    key = api_key(engine) or os.environ.get(engine.api_key_env, "")
    facts = described(engine.base_url, engine.served_model or engine.model, key)
    texts = [f"{n} {v if isinstance(v, (str, int)) else json.dumps(v)}" for n, v in facts.items()]
    return f"at {engine.base_url}" + f" ({', '.join(texts)})" * bool(texts)


def settings_to_collect(source: Source) -> CollectSettings:
    """One benchmark, from files of any rows or from the hub."""
    return CollectSettings(root="/", sources=(source,))


def reading_lines(collected: Artifact) -> list[str]:
    """How the rows of a benchmark were read whose fields nobody named, and what was rejected."""
    (facts,) = json.loads(collected.file(SOURCES).read_text())
    ways, name = facts.get("read", {}), Path(facts["dataset"]).name
    first = next(read_table(collected.file(KEPT), Problem))
    rejected = [row.reason for row in read_table(collected.file(REJECTED), Rejected)]
    line = [reading_line(name, ways, first)] if ways else []
    return [*line, *rejected_lines(rejected)] if line or rejected else []


def results_text(
    results: Sequence[BenchmarkResult], costs: Mapping[str, float], read: Sequence[str] = ()
) -> str:
    """One row a benchmark, shares in percent with 95 % intervals; then all that makes the rows
    repeatable: protocol, windows, overlaps, what was `read` from files; and costs."""
    zeros = {r.name: 100 * upper_bound_of_zero(r.problems) for r in results if r.avg == 0}
    return render_text(
        "terminal/evaluation.txt",
        s=results[0].statement,
        results=results,
        zeros=zeros,
        costs=costs,
        read=read,
    )
