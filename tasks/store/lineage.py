"""Finding a result by whatever name somebody has of it: a score, a checkpoint, a file, a run."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.store.store import InputRef, Manifest, Store

AVERAGE = "avg"
EVALUATION = "evaluate_"
RUN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


class Named(NamedTuple):
    """One result that a name means; `score` is the metric that was named, '' for none."""

    manifest: Manifest
    score: str = ""


def ancestors(store: Store, *results: Manifest) -> list[Manifest]:
    """Everything that `results` were made from, each once, oldest first, without themselves.

    A result that is gone from the store ends its branch.
    """
    seen = {(r.stage, r.key) for r in results}
    found: list[Manifest] = []

    def visit(ref: InputRef) -> None:
        if (ref.stage, ref.key) in seen:
            return
        seen.add((ref.stage, ref.key))
        try:
            parent = store.manifest(ref)
        except FileNotFoundError:
            return
        for older in parent.inputs:
            visit(older)
        found.append(parent)

    for result in results:
        for ref in result.inputs:
            visit(ref)
    return found


def descendants(everything: Sequence[Manifest], result: Manifest) -> list[Manifest]:
    """All of `everything` that was made of `result`, directly or not; a resampled input counts
    only with the digest that was read."""
    made_of, found, size = {(result.stage, result.key, result.digest)}, list[Manifest](), -1
    while size < len(found):  # a forced result of equal bytes is younger than what was made of it
        size = len(found)
        for m in everything:
            read = {(i.stage, i.key, i.digest) for i in m.inputs}
            if (m.stage, m.key, m.digest) not in made_of and made_of & read:
                made_of.add((m.stage, m.key, m.digest))
                found.append(m)
    return found


def find_named(store: Store, manifests: Sequence[Manifest], name: str) -> list[Named]:
    """What `name` means among `manifests` (oldest first), the newest last; empty if nothing.

    A name is: stage, stage/key (the key may be cut), a digest or key; a path in the store; an
    MLflow run's id or address; a score, [checkpoint/]benchmark[/metric].
    """
    name = name.strip().rstrip("/")
    stage, _, key = name.partition("/")
    if found := [m for m in manifests if m.stage == stage and m.key.startswith(key)]:
        return [Named(m) for m in found]
    inside, root = Path(name).expanduser().absolute(), store.root
    if inside.is_relative_to(root) and inside != root:
        parts = inside.relative_to(root).parts[:2]
        return [Named(m) for m in manifests if (m.stage, m.key)[: len(parts)] == parts]
    if runs := RUN_ID.findall(name):
        made = [m for m in manifests if m.mlflow_run == runs[-1]]
        if found := made or [m for m in manifests if m.pipeline_run == runs[-1]]:
            return [Named(m) for m in found]
    if found := _by_score(manifests, name):
        return found
    if not re.fullmatch(r"[0-9a-f]{6,64}", name):
        return []
    return [Named(m) for m in manifests if m.digest.startswith(name) or m.key.startswith(name)]


def scores_of(manifest: Manifest) -> list[str]:
    """The benchmarks that an evaluation scored."""
    if not manifest.stage.startswith(EVALUATION):
        return []
    return [n.removesuffix(f"/{AVERAGE}") for n in manifest.metrics if n.endswith(f"/{AVERAGE}")]


def statement_of(store: Store, manifest: Manifest, benchmark: str) -> dict | None:
    """The result of one benchmark with everything that makes it comparable."""
    path = store.folder(manifest.stage, manifest.key) / "results.json"
    if not path.exists():
        return None
    return next((r for r in json.loads(path.read_text()) if r["name"] == benchmark), None)


def _by_score(manifests: Iterable[Manifest], name: str) -> list[Named]:
    parts = name.split("/")
    found = []
    for m in manifests:
        rest = parts[1:] if m.stage == EVALUATION + parts[0].removeprefix(EVALUATION) else parts
        if rest and rest[0] in scores_of(m):
            metric = "/".join(rest) if len(rest) > 1 else f"{rest[0]}/{AVERAGE}"
            found += [Named(m, metric)] if metric in m.metrics else []
    return found
