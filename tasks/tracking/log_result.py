"""What MLflow is told of a published result: its rows, its checkpoint, its scores, its traces.

Checkpoints are recorded by a pointer, registered per profile, and the best one is named; weights
are never copied.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from configs.files import replace_text
from configs.settings.base import flat
from eval.judge.grades import GRADED, Graded, read_graded
from tasks.store.store import CARD, MANIFEST, PLOTS, Artifact, Manifest
from tasks.tracking.mlflow_client import MODEL_TAG, Mlflow, Point, Span, dataset
from tasks.tracking.run_tracker import StageLog, Tracker
from tasks.tracking.stream_logs import curve_names, log_files_of

CONTEXTS = {"sft": "training", "rl_math": "training", "rl_code": "training"}
ALIASES = {"base": "base", "sft": "sft", "rl_math": "math_rl", "rl_code": "code_rl"}
BEST = "best"
NOT_PROTOCOL = ("model", "checkpoint", "engine")
"""Fields of a result's statement that name who answered, not how it was asked."""
MAIN = ("kept.parquet", "samples.parquet", "scores.parquet", "difficulty.parquet")
"""The table that a stage is read for, where it has several."""


def log_result(
    log: StageLog, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]
) -> None:
    """Queue everything about a published result; ends the run as FINISHED."""
    result = _Result(log, artifact, manifest, inputs)
    figures = sorted(name for name in manifest.files if name.startswith(f"{PLOTS}/"))
    for name in (*figures, MANIFEST, CARD):
        path = artifact.folder / name
        if path.exists():
            place = "figures" if name in figures else ""
            log.put(name, lambda s, run, path=path, place=place: s.file(run, path, place))
    log.put("the manifest's run", result.sign)
    log.put("the checkpoint", result.checkpoint)
    log.put("datasets", result.datasets)
    log.put("metrics", result.metrics)
    log.put("scores", result.scores)
    log.put("traces", result.traces)
    log.put("the note", result.note)
    log.finish("FINISHED")


def backfill_logs(
    tracker: Tracker,
    artifact: Artifact,
    manifest: Manifest,
    inputs: Sequence[Artifact],
    params: Mapping[str, str],
) -> None:
    """Tell what a run that was killed had published but not told; nothing if it had."""
    folder, run = artifact.folder, manifest.pipeline_run
    log = tracker.stage(run, artifact.stage, artifact.key, params, folder, folder, True)
    log_files_of(log, folder)
    log_result(log, artifact, manifest, inputs)


class _Result:
    """One published result; each method is one message, and may be sent again."""

    def __init__(
        self, log: StageLog, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]
    ) -> None:
        self._log, self._artifact, self._manifest = log, artifact, manifest
        self._inputs = inputs
        self._made = datetime.fromisoformat(manifest.created).timestamp()
        self._model = ""
        """The checkpoint that this stage made or read."""

    def sign(self, _: Mlflow, run_id: str) -> None:
        """Write the run's id into a manifest that was published while the server was away."""
        path = self._artifact.folder / MANIFEST
        text = json.loads(path.read_text())
        if text["mlflow_run"] == "":
            replace_text(path, json.dumps({**text, "mlflow_run": run_id}, indent=1))

    def checkpoint(self, server: Mlflow, run_id: str) -> None:
        """A stage with weights makes a model and a version of it; others may read one."""
        artifact, tracker = self._artifact, self._log.tracker
        if not (artifact.folder / "checkpoint").exists():
            models = (_model_of(server, source) for source in self._inputs)
            self._model = next(filter(None, models), "")
            return
        about = _checkpoint(artifact, self._manifest)
        self._model = server.model(tracker.experiment, run_id, **about)
        readme = about["files"]["README.md"]
        version = server.version(tracker.name, self._model, run_id, about["tags"], readme)
        server.alias(tracker.name, ALIASES.get(artifact.stage, artifact.stage), version)

    def datasets(self, server: Mlflow, run_id: str) -> None:
        """Rows read and rows made, by name and digest; models read."""
        evaluates = self._artifact.stage.startswith("evaluate")
        context = "eval" if evaluates else CONTEXTS.get(self._artifact.stage, "input")
        data = [(d, context) for a in self._inputs if (d := dataset_of(a))]
        if made := dataset_of(self._artifact):
            data.append((made, "output"))
        server.inputs(run_id, data, filter(None, (_model_of(server, a) for a in self._inputs)))

    def metrics(self, server: Mlflow, run_id: str) -> None:
        values = {**self._manifest.metrics, "seconds": self._manifest.seconds}
        drawn = curve_names(self._artifact.folder)  # their last value is there already
        points = [Point(n, v, self._made) for n, v in values.items() if n not in drawn]
        scores = self._model if self._artifact.stage.startswith("evaluate") else ""
        data = next((d for a in self._inputs if (d := dataset_of(a))), None) if scores else None
        server.points(run_id, points, scores, data)

    def scores(self, server: Mlflow, _: str) -> None:
        """Scores on the model's version; `best` goes to the highest mean of one protocol.

        Versions that were asked other questions, or in another way, are not compared.
        """
        results, name = self._artifact.folder / "results.json", self._log.tracker.name
        if not self._model or not results.exists():
            return
        rows = json.loads(results.read_text())
        known = {r["name"]: r["avg"] for r in rows if r["avg"] is not None}
        versions = server.version_tags(name)
        mine = next((v for v, t in versions.items() if t.get(MODEL_TAG) == self._model), None)
        if mine is None or not known:
            return
        tags = {
            **{f"score.{_tag(n)}": f"{v:.4f}" for n, v in known.items()},
            "score": f"{sum(known.values()) / len(known):.6f}",
            "protocol": protocol_of(rows),
        }
        server.tag_version(name, mine, tags)
        versions[mine] = {**versions[mine], **tags}
        rivals = [v for v, t in versions.items() if t.get("protocol") == tags["protocol"]]
        best = max(rivals, key=lambda v: (float(versions[v]["score"]), -int(v)))
        server.alias(name, BEST, best)

    def traces(self, server: Mlflow, run_id: str) -> None:
        for i, graded in enumerate(read_graded(self._artifact.folder / GRADED)):
            server.trace(
                self._log.tracker.experiment,
                run_id,
                self._model,
                time=self._made + i / 1000,
                **_trace(graded, self._artifact),
            )

    def note(self, server: Mlflow, run_id: str) -> None:
        """The page of the run says which result it made, and how to see the whole chain."""
        name = f"{self._artifact.stage}/{self._artifact.key}"
        digest, commit = self._artifact.digest, self._manifest.git_commit
        note = (
            f"**{name}**, digest `{digest[:16]}`, commit `{commit[:12] or '-'}`\n\n"
            f"- files: `{self._artifact.folder}`\n- the whole chain: `klear lineage {name}`"
        )
        tags = {"klear.digest": digest, "klear.git_commit": commit}
        server.tag(run_id, {"mlflow.note.content": note, **tags})


def _model_of(server: Mlflow, artifact: Artifact) -> str:
    """The id of the model that an artifact is; '' if it is none or nobody recorded it."""
    path = artifact.folder / MANIFEST
    if not path.exists() or not (artifact.folder / "checkpoint").exists():
        return ""
    # Not the artifact's: the run may have been signed in after the artifact was handed out.
    run_id = json.loads(path.read_text())["mlflow_run"]
    run = server.run(run_id) if run_id else None
    return run.data.tags.get(MODEL_TAG, "") if run else ""


def _checkpoint(artifact: Artifact, manifest: Manifest) -> dict[str, Any]:
    """What the server keeps of a checkpoint: where it is, what it was made from, how to load it."""
    name, folder = f"{artifact.stage}/{artifact.key}", artifact.folder / "checkpoint"
    pointer = {
        "artifact_path": str(folder),
        "flavors": {"klear": {"artifact": name, "digest": artifact.digest, "uri": str(folder)}},
        "metadata": {
            "git_commit": manifest.git_commit,
            "seed": manifest.seed,
            "made_from": [f"{i.stage}/{i.key} {i.digest}" for i in manifest.inputs],
        },
    }
    readme = f"""Checkpoint {name}, digest `{artifact.digest[:16]}`. The weights stay in the store:

    AutoModelForCausalLM.from_pretrained("{folder}")
    vllm serve {folder}

What it was made from and what was made from it: `klear lineage {name}`
"""
    lineage = folder / "lineage.json"
    return {
        "name": f"{artifact.stage}-{artifact.key}",
        "params": {n: str(v) for n, v in flat(manifest.settings).items()},
        "tags": {
            "klear.artifact": name,
            "klear.digest": artifact.digest,
            "klear.path": str(folder),
            "klear.git_commit": manifest.git_commit,
        },
        "files": {
            "MLmodel": yaml.safe_dump(pointer, sort_keys=False),
            "README.md": readme,
            **({"lineage.json": lineage.read_text()} if lineage.exists() else {}),
        },
    }


def protocol_of(results: Sequence[Mapping[str, Any]]) -> str:
    """16 hex digits over what was asked and how; equal for every checkpoint of one run."""
    fields = ("name", "k", "questions", "date_from", "date_to")
    asked = [
        [
            *(r[field] for field in fields),
            {n: v for n, v in r["statement"].items() if n not in NOT_PROTOCOL},
        ]
        for r in results
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _tag(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-." else "_" for c in name)


def _trace(graded: Graded, artifact: Artifact) -> dict[str, Any]:
    """A graded answer: asked, written, judged, and every check of the judge."""
    step = "" if graded.step is None else f"step {graded.step}, "
    asked = {"prompt": graded.prompt}
    grade = {
        "verdict": graded.verdict,
        "reward": graded.reward,
        "pass_rate": graded.pass_rate,
        "reason": graded.reason,
    }
    judged = {"answer": graded.answer, "checks in all": graded.checks_in_all}
    spans = [
        Span("graded answer", "CHAIN", asked, {"answer": graded.answer, **grade}),
        Span("write", "LLM", asked, {"text": graded.text}),
        Span("judge", "EVALUATOR", judged, grade, is_error=graded.correct is False),
    ]
    for check in graded.checks:
        given = {"input": check.input, "expected": check.expected}
        said = {"verdict": check.verdict, "reason": check.reason}
        spans.append(Span(check.name, "EVALUATOR", given, said, check.verdict != "AC"))
    said = f"{graded.verdict}, reward {graded.reward}: {graded.answer or graded.text[-200:]}"
    return {
        "key": f"{artifact.digest}/{graded.step}/{graded.problem_id}/{graded.index}",
        "spans": spans,
        "preview": (graded.prompt, said),
        "tags": {
            "mlflow.traceName": f"{artifact.stage}: {step}{graded.problem_id} #{graded.index}",
            "klear.stage": artifact.stage,
            "klear.problem": graded.problem_id,
            "klear.verdict": graded.verdict,
            "klear.reward": "" if graded.reward is None else f"{graded.reward:g}",
        },
    }


def dataset_of(artifact: Artifact) -> Any:
    """An artifact's rows, from the parquet footers alone.

    None: a checkpoint, a report, or nothing but pages.
    """
    folder = artifact.folder
    tables = sorted(folder.glob("*.parquet"))
    if not tables or (folder / "checkpoint").exists():
        return None
    main = next((folder / n for n in MAIN if (folder / n).exists()), tables[0])
    rows = {path.stem: pq.read_metadata(path).num_rows for path in tables}
    return dataset(
        artifact.stage,
        artifact.digest[:16],
        {"uri": str(folder), "artifact": f"{artifact.stage}/{artifact.key}"},
        [(f.name, _type(f.type)) for f in pq.read_schema(main)],
        num_rows=rows[main.stem],
        **{f"rows {name}": count for name, count in rows.items()},
        bytes=sum(path.stat().st_size for path in tables),
    )


def _type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "long"
    if pa.types.is_floating(kind):
        return "double"
    return "string"  # nested columns are JSON to a reader
