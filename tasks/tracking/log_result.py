"""What MLflow is told of a published result: its rows, its checkpoint, its scores, its traces.

Checkpoints are recorded by a pointer, registered per profile, and the best one is named; weights
are never copied.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from configs.files import replace_text
from configs.settings.base import flat
from configs.settings.evaluation import LEARNING_CURVE
from eval.judge.grades import GRADED, read_graded
from tasks.store.store import CARD, MANIFEST, PLOTS, Artifact, Manifest
from tasks.tracking.mlflow_client import (
    ARTIFACT_TAG,
    MODEL_TAG,
    NOTE_TAG,
    Mlflow,
    Point,
    dataset,
)
from tasks.tracking.run_tracker import StageLog, Tracker
from training.layout import CHECKPOINT, METRICS

ALIASES = {"rl_math": "math_rl", "rl_code": "code_rl"}
"""Of a model's version, where it is not the name of its stage."""
BEST = "best"
EVALUATES = "evaluate"
TRAINS = ("sft", "rl_math", "rl_code")
NOT_PROTOCOL = ("model", "checkpoint", "engine")
"""Fields of a result's statement that name who answered, not how it was asked."""
MAIN = ("kept", "samples", "scores", "difficulty")
"""The table that a stage is read for, where it has several."""


def log_result(
    log: StageLog, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]
) -> None:
    """Queue everything about a published result; ends the run as FINISHED."""
    for name in (*sorted(n for n in manifest.files if n.startswith(f"{PLOTS}/")), MANIFEST, CARD):
        path, place = artifact.folder / name, "figures" if name.startswith(PLOTS) else None
        if path.exists():
            log.put(name, lambda s, run, path=path, at=place: s.log_artifact(run, str(path), at))
    result = _Result(log.tracker, artifact, manifest, inputs)
    log.put("the manifest's run", result.sign)
    log.put("the checkpoint", result.checkpoint)
    log.put("datasets", result.datasets)
    log.put("metrics", result.metrics)
    log.put("scores", result.scores)
    log.put("traces", result.traces)
    log.put("the note", result.note)
    log.finish("FINISHED")


class _Result:
    """One published result; each method is one message, and may be sent again."""

    def __init__(
        self, tracker: Tracker, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]
    ) -> None:
        self._tracker, self._artifact, self._manifest = tracker, artifact, manifest
        self._inputs, self._name = inputs, f"{artifact.stage}/{artifact.key}"
        self._made = datetime.fromisoformat(manifest.created).timestamp()
        self._evaluates = artifact.stage.startswith(EVALUATES)
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
        artifact, tracker = self._artifact, self._tracker
        folder = artifact.folder / CHECKPOINT
        if not folder.exists():
            models = (_model_of(server, source) for source in self._inputs)
            self._model = next(filter(None, models), "")
            return
        tags = {
            ARTIFACT_TAG: self._name,
            "klear.digest": artifact.digest,
            "klear.path": str(folder),
            "klear.git_commit": self._manifest.git_commit,
        }
        params = {n: str(v) for n, v in flat(self._manifest.settings).items()}
        model = f"{artifact.stage}-{artifact.key}"
        self._model = server.model(tracker.experiment, run_id, model, params, tags)
        about = (
            f"Checkpoint {self._name}, digest `{artifact.digest[:16]}`. The weights stay in the "
            f'store:\n\n    AutoModelForCausalLM.from_pretrained("{folder}")\n    vllm serve '
            f"{folder}\n\nThe whole chain: `klear lineage {self._name}`\n"
        )
        version = server.version(tracker.name, self._model, run_id, tags, about)
        alias = ALIASES.get(artifact.stage, artifact.stage)
        server.set_registered_model_alias(tracker.name, alias, version)

    def datasets(self, server: Mlflow, run_id: str) -> None:
        """Rows read and rows made, by name and digest; models read."""
        trains = self._artifact.stage in TRAINS
        context = "eval" if self._evaluates else "training" if trains else "input"
        data = [(d, context) for a in self._inputs if (d := dataset_of(a))]
        if made := dataset_of(self._artifact):
            data.append((made, "output"))
        server.inputs(run_id, data, filter(None, (_model_of(server, a) for a in self._inputs)))

    def metrics(self, server: Mlflow, run_id: str) -> None:
        values = {**self._manifest.metrics, "seconds": self._manifest.seconds}
        drawn = curve_names(self._artifact.folder)  # their last value is there already
        points = [Point(n, v, self._made) for n, v in values.items() if n not in drawn]
        read = (dataset_of(a) for a in self._inputs) if self._evaluates else ()
        model = self._model if self._evaluates else ""
        server.points(run_id, points, model, next(filter(None, read), None) if model else None)

    def scores(self, server: Mlflow, _: str) -> None:
        """Scores on the model's version; `best` goes to the highest mean of one protocol.

        Versions that were asked other questions, or in another way, are not compared.
        """
        results, name = self._artifact.folder / "results.json", self._tracker.name
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
        for tag, value in tags.items():
            server.set_model_version_tag(name, mine, tag, value)
        versions[mine] = {**versions[mine], **tags}
        rivals = [v for v, t in versions.items() if t.get("protocol") == tags["protocol"]]
        best = max(rivals, key=lambda v: (float(versions[v]["score"]), -int(v)))
        server.set_registered_model_alias(name, BEST, best)

    def traces(self, server: Mlflow, run_id: str) -> None:
        """The graded answers: asked, written, graded, with every check of the judge."""
        artifact = self._artifact
        model = {"mlflow.modelId": self._model} if self._model else {}
        for i, graded in enumerate(read_graded(artifact.folder / GRADED)):
            step = "" if graded.step is None else f"step {graded.step}, "
            tags = {
                "mlflow.traceName": f"{artifact.stage}: {step}{graded.problem_id} #{graded.index}",
                "klear.stage": artifact.stage,
                "klear.problem": graded.problem_id,
                "klear.verdict": graded.verdict,
                "klear.reward": "" if graded.reward is None else f"{graded.reward:g}",
            }
            server.trace(
                self._tracker.experiment,
                f"{run_id}/{artifact.digest}/{graded.step}/{graded.problem_id}/{graded.index}",
                self._made + i / 1000,
                {"prompt": graded.prompt},
                graded.model_dump(mode="json", exclude={"step", "problem_id", "index", "prompt"}),
                {"mlflow.sourceRun": run_id, **model},
                tags,
            )

    def note(self, server: Mlflow, run_id: str) -> None:
        """The page of the run says which result it made, and how to see the whole chain."""
        digest, commit = self._artifact.digest, self._manifest.git_commit
        note = (
            f"**{self._name}**, digest `{digest[:16]}`, commit `{commit[:12] or '-'}`\n\n"
            f"- files: `{self._artifact.folder}`\n- the whole chain: `klear lineage {self._name}`"
        )
        tags = {"klear.digest": digest, "klear.git_commit": commit}
        server.tag(run_id, {NOTE_TAG: note, **tags})


def curve_names(folder: Path) -> set[str]:
    """The metrics that a finished stage drew as curves."""
    paths = [folder / name for name in (METRICS, LEARNING_CURVE)]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return set().union(*(json.loads(line)["metrics"] for line in lines))


def _model_of(server: Mlflow, artifact: Artifact) -> str:
    """The id of the model that an artifact is; '' if it is none or nobody recorded it."""
    path = artifact.folder / MANIFEST
    if not path.exists() or not (artifact.folder / CHECKPOINT).exists():
        return ""
    # Not the artifact's: the run may have been signed in after the artifact was handed out.
    run_id = json.loads(path.read_text())["mlflow_run"]
    run = server.active_run(run_id) if run_id else None
    return run.data.tags.get(MODEL_TAG, "") if run else ""


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


def dataset_of(artifact: Artifact) -> Any:
    """An artifact's rows, counted by the parquet footers; None: a checkpoint, or only pages."""
    folder = artifact.folder
    rows = {p.stem: pq.read_metadata(p).num_rows for p in sorted(folder.glob("*.parquet"))}
    if not rows or (folder / CHECKPOINT).exists():
        return None
    main = next((name for name in MAIN if name in rows), next(iter(rows)))
    return dataset(
        artifact.stage,
        artifact.digest[:16],
        {"uri": str(folder), "artifact": f"{artifact.stage}/{artifact.key}"},
        {"num_rows": rows[main], **{f"rows {name}": count for name, count in rows.items()}},
    )
