"""Checkpoints as models: recorded by a pointer, registered per profile, the best one named.

Weights are never copied. What the server keeps of a checkpoint is where it is, its digest, what it
was made from, and how to load it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tasks.store import MANIFEST, Artifact, Manifest
from tasks.tracked import Model
from tasks.tracking import MODEL_TAG, Mlflow

if TYPE_CHECKING:
    from tasks.tracker import Tracker

ALIASES = {"base": "base", "sft": "sft", "rl_math": "math_rl", "rl_code": "code_rl"}
BEST = "best"
SAME = ("klear.artifact", "klear.digest")
NOT_PROTOCOL = ("model", "checkpoint", "engine")
"""Fields of a result's statement that name who answered, not how it was asked."""


def register(
    server: Mlflow, tracker: Tracker, artifact: Artifact, manifest: Manifest, run_id: str
) -> str:
    """The model's id: recorded, registered under the profile's name, with its stage's alias."""
    model = _model(artifact, manifest)
    found = server.model(tracker.experiment, run_id, model, SAME)
    version = server.version(tracker.name, found, run_id, model.tags, model.files["README.md"])
    server.alias(tracker.name, ALIASES.get(artifact.stage, artifact.stage), version)
    return found


def model_of(server: Mlflow, artifact: Artifact) -> str:
    """The id of the model that an artifact is; '' if it is none or nobody recorded it."""
    run_id = run_of(artifact) if (artifact.folder / "checkpoint").exists() else ""
    return server.tags_of(run_id).get(MODEL_TAG, "") if run_id else ""


def run_of(artifact: Artifact) -> str:
    """The run that made an artifact; its manifest knows it where the server was away just then."""
    manifest = artifact.folder / MANIFEST
    if artifact.mlflow_run or not manifest.exists():
        return artifact.mlflow_run
    return Manifest.model_validate_json(manifest.read_bytes()).mlflow_run


def scored(server: Mlflow, name: str, model: str, results: Path) -> None:
    """Put the scores on the model's version; `best` goes to the highest mean of one protocol.

    Versions that were asked other questions, or in another way, are not compared.
    """
    rows = json.loads(results.read_text())
    known = {r["name"]: r["avg"] for r in rows if r["avg"] is not None}
    versions = server.version_tags(name)
    mine = next((v for v, tags in versions.items() if tags.get(MODEL_TAG) == model), None)
    if mine is None or not known:
        return
    mean = sum(known.values()) / len(known)
    tags = {f"score.{_tag(n)}": f"{v:.4f}" for n, v in known.items()}
    tags |= {"score": f"{mean:.6f}", "protocol": protocol_of(rows)}
    server.tag_version(name, mine, tags)
    versions[mine] = {**versions[mine], **tags}
    rivals = [v for v, t in versions.items() if t.get("protocol") == tags["protocol"]]
    best = max(rivals, key=lambda v: (float(versions[v]["score"]), -int(v)))
    server.alias(name, BEST, best)


def protocol_of(results: list[dict]) -> str:
    """16 hex digits over what was asked and how; equal for every checkpoint of one run."""
    asked = [
        [r["name"], r["k"], r["questions"], r["date_from"], r["date_to"],
         {n: v for n, v in r["statement"].items() if n not in NOT_PROTOCOL}]
        for r in results
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _model(artifact: Artifact, manifest: Manifest) -> Model:
    name = f"{artifact.stage}/{artifact.key}"
    folder = artifact.folder / "checkpoint"
    pointer = {
        "artifact_path": str(folder),
        "flavors": {"klear": {"artifact": name, "digest": artifact.digest, "uri": str(folder)}},
        "metadata": {
            "git_commit": manifest.git_commit,
            "seed": manifest.seed,
            "made_from": [f"{i.stage}/{i.key} {i.digest}" for i in manifest.inputs],
        },
    }
    lineage = folder / "lineage.json"
    return Model(
        name=f"{artifact.stage}-{artifact.key}",
        params={n: str(v) for n, v in _flat(manifest.settings).items()},
        tags={
            "klear.artifact": name,
            "klear.digest": artifact.digest,
            "klear.path": str(folder),
            "klear.git_commit": manifest.git_commit,
        },
        files={
            "MLmodel": yaml.safe_dump(pointer, sort_keys=False),
            "README.md": _how_to_load(name, folder, artifact.digest),
            **({"lineage.json": lineage.read_text()} if lineage.exists() else {}),
        },
    )


def _how_to_load(name: str, folder: Path, digest: str) -> str:
    return f"""Checkpoint {name}, digest `{digest[:16]}`. The weights stay in the store:

    AutoModelForCausalLM.from_pretrained("{folder}")
    vllm serve {folder}

What it was made from and what was made from it: `klear lineage {name}`
"""


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        n: v for key, inner in value.items()
        for n, v in _flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }  # fmt: skip


def _tag(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-." else "_" for c in name)
