"""What `klear eval` does beyond the stage `evaluate`: any model, and benchmarks from any file.

Both parts are stages: a benchmark is collected once, and the scores lie in the store beside those
of a run.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.evaluation import WITH_FORMAT, Evaluation
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.benchmarks.benchmarks import GRADER_VERSION, BenchmarkResult
from klear.eval.benchmarks.metrics import upper_bound_of_zero
from klear.eval.records import Problem
from klear.eval.row_files import read_rows
from klear.eval.tables import read_table
from klear.tasks.answers.distill import api_key
from klear.tasks.data.collect import collect
from klear.tasks.data.sources import why_not
from klear.tasks.models.evaluate import Subject, metrics_of, run_benchmarks, spent, template_of
from klear.tasks.report.page import render_text
from klear.tasks.stage.stage import Metrics, stage
from klear.tasks.store.store import Artifact, content_digest, scan
from klear.training.engines.endpoint import described
from klear.training.layout import chat_file

PROMPTS = ("problem", "question", "prompt", "question_content", "query")
ANSWERS = ("answer", "expected_answer", "final_answer", "gt", "gold", "target")
BOXED = ("solution", "reference_solution", "response")
TESTS = ("tests", "private_test_cases", "input_output", "test_cases", "test")
DATES = ("date", "contest_date")
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
benchmark = collect.named("benchmark")


@stage(GRADER_VERSION, lambda settings: map(Path, settings.files.values()), "evaluation")
def eval_model(out: Path, *collected: Artifact, settings: Evaluation) -> Metrics:
    """What `evaluate` writes, of any model on benchmarks that were collected or lie in files."""
    found = [p for a in collected for p in read_table(a.file("kept.parquet"), Problem)]
    for name, file in settings.files.items():
        found += problems_of_file(Path(file), name) or ()
    chosen: dict[str, list[Problem]] = {p.source: [] for p in found}
    for problem in found:
        if problem.judgeable and len(chosen[problem.source]) != settings.limit:
            chosen[problem.source].append(problem)
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
    folder = Path(engine.model)
    if engine.kind == "openai":
        found = {"model": engine.model, "checkpoint": _at(engine), "template": "of the endpoint"}
        return evaluation.model_copy(update=found)
    if folder.is_dir():
        name = folder.parent.name if folder.name == "checkpoint" else folder.name
        found: dict[str, Any] = {"model": name, "checkpoint": content_digest(scan(folder))[:16]}
    else:  # a hub model's folder is named by the commit; the engine fetches the weights
        from huggingface_hub import snapshot_download

        small = {"revision": engine.revision, "allow_patterns": SMALL_FILES}
        try:
            folder = Path(snapshot_download(engine.model, **small))
        except Exception as error:  # the hub raises its own kinds: not found, gated, no network
            model = f"{engine.model} (revision {engine.revision})"
            raise ValueError(f"{model} cannot be fetched from the hub: {why_not(error)}") from error
        pinned = engine.model_copy(update={"revision": folder.name})
        found = {"engine": pinned, "model": engine.model, "checkpoint": folder.name}
    found["template"] = template_of(engine, folder)
    if own := chat_file(folder).get("question"):
        protocols = [
            p.model_copy(update={"question": own}) if p.question == WITH_FORMAT else p
            for p in evaluation.evaluate.protocols
        ]
        how = {"protocols": tuple(protocols)}
        found["evaluate"] = evaluation.evaluate.model_copy(update=how)
    return evaluation.model_copy(update=found)


def _at(engine: EngineSettings) -> str:
    """The address of an endpoint, and what it says of the model in its list of models. Raises
    EngineError where it cannot be reached."""
    key = api_key(engine) or os.environ.get(engine.api_key_env, "")
    facts = described(engine.base_url, engine.served_model or engine.model, key)
    said = [f"{n} {v if isinstance(v, (str, int)) else json.dumps(v)}" for n, v in facts.items()]
    return f"at {engine.base_url}" + f" ({', '.join(said)})" * bool(said)


def settings_to_collect(name: str, file: Path | None) -> CollectSettings:
    """One benchmark from a file of any rows, or from the hub."""
    source = source_of_file(name, file) if file else Source(use=name)
    return CollectSettings(root="/", sources=(source,))


def source_of_file(name: str, file: Path) -> Source:
    """A Source for a local file, by the fields of its first row. Raises ValueError that names them
    when none can be a prompt, an answer or tests."""
    first = next(read_rows(file), None)
    if first is None or first.value is None:
        raise ValueError(f"{file}: {first.error if first else 'holds no rows'}")
    row = first.value

    def one_of(names: Sequence[str], what: str) -> str:
        for field in names:
            if row.get(field) not in (None, ""):
                return field
        raise ValueError(
            f"{file}: no field holds {what} ({', '.join(names)}); the rows have: {', '.join(row)}"
        )

    fields: dict[str, Any] = {"name": name, "files": [str(file.absolute())]}
    fields["prompt_field"] = one_of(PROMPTS, "a problem")
    if date := next((d for d in DATES if d in row), ""):
        fields["date_field"] = date
    answered = any(row.get(f) not in (None, "") for f in (*ANSWERS, *BOXED))
    guess = "code" if not answered and any(t in row for t in TESTS) else "math"
    if (row.get("domain") if row.get("domain") in ("math", "code") else guess) == "code":
        fields |= {"domain": "code", "tests_field": one_of(TESTS, "tests")}
        if row.get("entry_point"):
            fields["fn_name_field"] = "entry_point"
    elif (answer := next((a for a in ANSWERS if a in row), None)) is not None:
        fields["answer_field"] = answer
    else:
        fields |= {"answer_field": one_of(BOXED, "an answer"), "answer_in_box": True}
    return Source.model_validate(fields)


def problems_of_file(file: Path, name: str) -> list[Problem] | None:
    """The problems of a file that already holds Problems (a stage's kept.parquet, say), under the
    source `name`; None when it holds rows of another kind."""
    try:
        if file.suffix == ".parquet":
            rows = list(read_table(file, Problem))
        else:
            rows = [Problem.model_validate(row.value) for row in read_rows(file)]
    except (KeyError, ValueError):  # a ValidationError is a ValueError
        return None
    return [problem.model_copy(update={"source": name}) for problem in rows]


def results_text(results: Sequence[BenchmarkResult], costs: Mapping[str, float]) -> str:
    """One row a benchmark, shares in percent with 95 % intervals; then all that makes the rows
    repeatable: protocol, windows, overlaps; and costs."""
    zeros = {r.name: 100 * upper_bound_of_zero(r.problems) for r in results if r.avg == 0}
    facts = {"s": results[0].statement, "results": results, "zeros": zeros, "costs": costs}
    return render_text("terminal/evaluation.txt", **facts)
