"""What a finished stage tells its run: figures, datasets, checkpoint, scores, traces, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from eval.graded import FILE as GRADED
from eval.graded import read_graded
from tasks.checkpoint_record import model_of, register, run_of, scored
from tasks.dataset_facts import dataset_of
from tasks.following import curve_names, tell_files
from tasks.graded_traces import trace_of
from tasks.stage_log import StageLog
from tasks.store import CARD, MANIFEST, PLOTS, Artifact, Manifest
from tasks.tracked import Point
from tasks.tracking import MODEL_TAG, Mlflow

if TYPE_CHECKING:
    from tasks.tracker import Tracker

CONTEXTS = {"sft": "training", "rl_math": "training", "rl_code": "training"}
FIGURES = "figures"


def tell(log: StageLog, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]) -> None:
    """Queue everything about a published result; ends the run as FINISHED."""
    record = StageRecord(log, artifact, manifest, inputs)
    for name in sorted(n for n in manifest.files if n.startswith(f"{PLOTS}/")):
        log.put(name, lambda s, run, name=name: s.file(run, artifact.folder / name, FIGURES))
    for name in (MANIFEST, CARD):
        if (artifact.folder / name).exists():
            log.put(name, lambda s, run, name=name: s.file(run, artifact.folder / name))
    if artifact.mlflow_run == "":
        log.sign(artifact.folder / MANIFEST)
    log.put("the checkpoint", record.checkpoint)
    log.put("datasets", record.datasets)
    log.put("metrics", record.metrics)
    log.put("scores", record.scores)
    log.put("traces", record.traces)
    log.put("links", record.links)
    log.finish("FINISHED")


def catch_up(
    tracker: Tracker,
    artifact: Artifact,
    manifest: Manifest,
    inputs: Sequence[Artifact],
    params: Mapping[str, str],
) -> None:
    """Tell what a run that was killed had published but not told; nothing if it had."""
    folder = artifact.folder
    log = tracker.stage(
        manifest.pipeline_run, artifact.stage, artifact.key, params, folder, folder, True
    )
    tell_files(log, folder)
    tell(log, artifact, manifest, inputs)


class StageRecord:
    """One published result; each method tells one thing, and may be called again."""

    def __init__(
        self, log: StageLog, artifact: Artifact, manifest: Manifest, inputs: Sequence[Artifact]
    ) -> None:
        self._log, self._artifact, self._manifest = log, artifact, manifest
        self._inputs = inputs
        self._made = datetime.fromisoformat(manifest.created).timestamp()
        self._model = ""
        """The checkpoint that this stage made or read."""

    def checkpoint(self, server: Mlflow, run_id: str) -> None:
        """A stage with weights makes a model and a version of it; others may read one."""
        tracker = self._log.tracker
        if (self._artifact.folder / "checkpoint").exists():
            self._model = register(server, tracker, self._artifact, self._manifest, run_id)
            server.output(run_id, self._model, 0)
            server.tag(run_id, {MODEL_TAG: self._model})
            return
        models = (model_of(server, source) for source in self._inputs)
        self._model = next(filter(None, models), "")

    def datasets(self, server: Mlflow, run_id: str) -> None:
        """Rows read and rows made, by name and digest; models read."""
        context = CONTEXTS.get(self._artifact.stage, "input")
        if self._artifact.stage.startswith("evaluate"):
            context = "eval"
        facts = [(d, context) for a in self._inputs if (d := dataset_of(a))]
        made = dataset_of(self._artifact)
        models = [model_of(server, a) for a in self._inputs]
        server.inputs(run_id, [*facts, *([(made, "output")] if made else [])], filter(None, models))

    def metrics(self, server: Mlflow, run_id: str) -> None:
        values = {**self._manifest.metrics, "seconds": self._manifest.seconds}
        drawn = curve_names(self._artifact.folder)  # their last value is there already
        points = [Point(n, v, self._made) for n, v in values.items() if n not in drawn]
        scores = self._artifact.stage.startswith("evaluate") and self._model
        data = next((d for a in self._inputs if (d := dataset_of(a))), None) if scores else None
        server.points(run_id, points, self._model if scores else "", data)

    def scores(self, server: Mlflow, _: str) -> None:
        """The scores on the version that was evaluated, and who is the best now."""
        results = self._artifact.folder / "results.json"
        if self._model and results.exists():
            scored(server, self._log.tracker.name, self._model, results)

    def traces(self, server: Mlflow, run_id: str) -> None:
        for i, graded in enumerate(read_graded(self._artifact.folder / GRADED)):
            trace = trace_of(graded, self._artifact, self._made + i / 1000)
            server.trace(self._log.tracker.experiment, run_id, trace, self._model)

    def links(self, server: Mlflow, run_id: str) -> None:
        """The page of the run leads to what it was made from, and to its parent."""
        a, m, tracker = self._artifact, self._manifest, self._log.tracker
        parent = m.pipeline_run
        lines = [
            f"**{a.stage}/{a.key}**, digest `{a.digest[:16]}`, commit `{m.git_commit[:12] or '-'}`",
            "",
            f"- part of {self._link(server, 'this run', parent)}",
            *(
                f"- made from {self._link(server, f'{i.stage}/{i.key}', run_of(i))}"
                for i in self._inputs
            ),
            f"- files: `{a.folder}`",
            f"- the whole chain: `klear lineage {a.stage}/{a.key}`",
        ]
        if self._model and tracker.uri.startswith("http"):
            url = f"{tracker.uri}/#/experiments/{tracker.experiment}/models/{self._model}"
            lines.insert(3, f"- checkpoint: [{self._model}]({url})")
        server.tag(
            run_id,
            {
                "mlflow.note.content": "\n".join(lines),
                "klear.digest": a.digest,
                "klear.folder": str(a.folder),
                "klear.git_commit": m.git_commit,
            },
        )

    def _link(self, server: Mlflow, text: str, run_id: str) -> str:
        known = self._log.tracker.experiments
        if run_id and run_id not in known:
            known[run_id] = server.experiment_of(run_id)
        if not known.get(run_id):
            return text
        url = self._log.tracker.run_url(run_id, known[run_id])
        return f"[{text}]({url})" if url else f"{text} (run {run_id})"
