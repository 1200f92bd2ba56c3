"""What MLflow is told of a published result: its rows, its checkpoint, its scores, its traces.

Checkpoints are recorded by a pointer, registered per profile, and the best one is named; weights
are never copied.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from ...configs.files import replace_text
from ...configs.settings.evaluation import LEARNING_CURVE
from ...eval.benchmarks.grades import GOLD, GRADED, Graded, read_graded
from ...training.launch.result_files import CHECKPOINT, METRICS, read_lines
from ..report.plots import rollout_histograms
from ..store.store import CARD, MANIFEST, PLOTS, Artifact, Manifest, read_manifest
from .mlflow_client import ARTIFACT_TAG, DIGEST_TAG, MODEL_TAG, Mlflow, entities, made_by, metric
from .run_tracker import StageLog, Tracker

ALIASES = {"rl_math": "math_rl", "rl_code": "code_rl"}
"""Of a model's version, where it is not the name of its stage."""
BEST = "best"
CONTEXTS = {"evaluate": "eval", "sft": "training", "rl": "training"}
"""What rows are read for, by how the name of a stage begins; else they are its input."""
READ = {"select": "training", "filter_rl": "training", "benchmarks": "eval"}
"""The rows that a pipeline is known by, with their context in MLflow."""
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
    messages = result.sign, result.checkpoint, result.datasets, result.metrics, result.traces
    for send in (*messages, result.histograms):
        log.put(send.__name__, send)
    log.finish("FINISHED")


def log_complete(tracker: Tracker, run_id: str, made: Mapping[str, Artifact]) -> None:
    """The rows and models of a complete run on its page, and the aliases to its checkpoints: `best`
    is the one whose benchmarks have the highest mean, at equal means the earlier."""
    means = {
        n: fmean([v for name, v in scores.metrics.items() if name.endswith("/avg")] or [0.0])
        for n in made
        if (scores := made.get(f"evaluate_{n}"))
    }
    score = {made[n].digest: f"{mean:.6f}" for n, mean in means.items()}
    aliases = {ALIASES.get(stage, stage): made[stage] for stage in means}
    if means:
        aliases[BEST] = made[max(means, key=lambda n: means[n])]

    rows = [(d, READ[n]) for n, a in made.items() if n in READ and (d := dataset_of(a))]

    def send(server: Mlflow) -> None:
        models: dict[str, str] = {}
        versions = server.version_tags(tracker.name)
        known = {(t.get(ARTIFACT_TAG), t.get(DIGEST_TAG)): v for v, t in versions.items()}
        there = server.get_registered_model(tracker.name).aliases if known else {}
        for alias, model in aliases.items():
            # A checkpoint of another machine's store may never have been registered here.
            if version := known.get((f"{model.stage}/{model.key}", model.digest)):
                # Two requests each, for what is there already when nothing was computed.
                if there.get(alias) != version:
                    server.set_registered_model_alias(tracker.name, alias, version)
                if versions[version].get("score") != score[model.digest]:
                    server.set_model_version_tag(
                        tracker.name, version, "score", score[model.digest]
                    )
                models[alias] = versions[version][MODEL_TAG]
        server.inputs(run_id, rows, models.values())

    tracker.put("the rows, models and aliases", send)


@dataclass
class _Result:
    """One published result; each method is one message, and may be sent again."""

    tracker: Tracker
    artifact: Artifact
    manifest: Manifest
    inputs: Sequence[Artifact]
    model: str = ""
    """The checkpoint that this stage made or read."""

    def sign(self, server: Mlflow, run_id: str) -> None:
        """Write the run's id into a manifest that was published while the server was away."""
        path = self.artifact.folder / MANIFEST
        text = json.loads(path.read_text())
        if text["mlflow_run"] == "":
            replace_text(path, json.dumps({**text, "mlflow_run": run_id}, indent=1))
        digest = {DIGEST_TAG: self.artifact.digest}
        server.tag(run_id, {**digest, **made_by(self.manifest.git_commit)})

    def checkpoint(self, server: Mlflow, run_id: str) -> None:
        """A stage with weights makes a model and a version of it; others may read one."""
        artifact, tracker = self.artifact, self.tracker
        folder = artifact.folder / CHECKPOINT
        if not folder.exists():
            self.model = next(iter(self._models_read(server)), "")
            return
        tags = {
            ARTIFACT_TAG: f"{artifact.stage}/{artifact.key}",
            DIGEST_TAG: artifact.digest,
            "klear.path": str(folder),
            "klear.git_commit": self.manifest.git_commit,
        }
        self.model = server.register(tracker.experiment, tracker.name, run_id, tags)

    def datasets(self, server: Mlflow, run_id: str) -> None:
        """Rows read and rows made, by name and digest; models read."""
        context = CONTEXTS.get(self.artifact.stage.partition("_")[0], "input")
        read = [(d, context) for a in self.inputs if (d := dataset_of(a))]
        made = [(d, "output") for d in [dataset_of(self.artifact)] if d]
        server.inputs(run_id, read + made, self._models_read(server))

    def metrics(self, server: Mlflow, run_id: str) -> None:
        values = {**self.manifest.metrics, "seconds": self.manifest.seconds}
        drawn, made = curve_names(self.artifact.folder), self.manifest.made
        # Of a curve the last value is there already.
        server.log_batch(run_id, [metric(n, v, made) for n, v in values.items() if n not in drawn])

    def traces(self, server: Mlflow, run_id: str) -> None:
        """The graded answers: asked, written, graded, with every check of the judge."""
        artifact = self.artifact
        model = {"mlflow.modelId": self.model} if self.model else {}
        of_stage = self.manifest.made, self.manifest.seconds
        lines, before = read_lines(artifact.folder / METRICS), of_stage[0] - of_stage[1]
        of_step = dict[int | None, tuple[float, float]]()  # of RL, or so many answers
        for line in lines:
            took = line["metrics"].get("seconds/rollout", line["time"] - before)
            of_step[line["step"]], before = (line["time"], took), line["time"]
        for i, graded in enumerate(read_graded(artifact.folder / GRADED)):
            later = (n for n in of_step if n and graded.place and n >= graded.place)
            end, seconds = of_step.get(min(later, default=graded.step), of_stage)
            step = "" if graded.step is None else f"step {graded.step}, "
            tags = {
                "mlflow.traceName": f"{artifact.stage}: {step}{graded.problem_id} #{graded.index}",
                "klear.verdict": graded.verdict,
            }
            gold = next((c.expected for c in graded.checks if c.name == GOLD), "")
            server.trace(
                self.tracker.experiment,
                f"{run_id}/{artifact.digest}/{graded.step}/{graded.problem_id}/{graded.index}",
                (end + i / 1000 - seconds, end + i / 1000),
                {"prompt": as_read(graded.prompt)},
                as_shown(graded),
                {"mlflow.sourceRun": run_id, **model},
                tags,
                graded.correct,
                graded.reason,
                gold,
            )

    def histograms(self, server: Mlflow, run_id: str) -> None:
        """The rollouts kept of an RL stage in one picture."""
        path, columns = self.artifact.folder / "rollouts.parquet", ["step", "tokens", "reward"]
        if path.exists() and (rows := pq.read_table(path, columns=columns).to_pylist()):
            server.log_figure(run_id, rollout_histograms(rows), "figures/rollouts.png")

    def _models_read(self, server: Mlflow) -> list[str]:
        """The ids of the inputs that are models; one that nobody recorded is left out."""
        models = [a.folder for a in self.inputs if (a.folder / CHECKPOINT).exists()]
        # Not the artifact's: the run may have been signed in after it was handed out.
        made_by_runs = filter(None, (read_manifest(folder).mlflow_run for folder in models))
        runs = filter(None, map(server.active_run, made_by_runs))
        return [run.data.tags[MODEL_TAG] for run in runs if MODEL_TAG in run.data.tags]


def as_shown(graded: Graded) -> dict[str, Any]:
    """An answer and its grade for MLflow's page of a trace, and which tests are not there."""
    shown = graded.model_dump(mode="json", exclude={"step", "problem_id", "index", "prompt"})
    shown |= {"text": as_read(graded.text), "answer": as_read(graded.answer or "")}
    if 0 < len(graded.checks) < graded.checks_in_all:
        shown["note"] = f"the first {len(graded.checks)} of {graded.checks_in_all} tests"
    elif not graded.checks and graded.checks_in_all:
        shown["note"] = f"none of the {graded.checks_in_all} tests was run again for this page"
    return shown


def as_read(text: str) -> str:
    """Several lines as a block of code: MLflow shows text as Markdown, which joins them."""
    return f"~~~~~\n{text}\n~~~~~" if "\n" in text else text


def curve_names(folder: Path) -> set[str]:
    """The metrics that a finished stage drew as curves."""
    lines = [*read_lines(folder / METRICS), *read_lines(folder / LEARNING_CURVE)]
    return set().union(*(line["metrics"] for line in lines))


def dataset_of(artifact: Artifact) -> entities.Dataset | None:
    """An artifact's rows, counted by the parquet footers; None: a checkpoint, or only pages."""
    folder = artifact.folder
    rows = {p.stem: pq.read_metadata(p).num_rows for p in sorted(folder.glob("*.parquet"))}
    if not rows or (folder / CHECKPOINT).exists():
        return None
    main = next((name for name in MAIN if name in rows), next(iter(rows)))
    source = {"uri": str(folder), "artifact": f"{artifact.stage}/{artifact.key}"}
    counts = {"num_rows": rows[main], **{f"rows {name}": count for name, count in rows.items()}}
    about = json.dumps(source), None, json.dumps(counts)
    return entities.Dataset(artifact.stage, artifact.digest[:16], "local", *about)
