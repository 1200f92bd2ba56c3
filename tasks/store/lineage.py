"""What a result was made from, what was made of it, and which result a score is of."""

import json
from collections.abc import Sequence
from typing import Any

from klear.tasks.store.store import InputRef, Manifest, Store

AVERAGE = "avg"
EVALUATION = "evaluate_"


def ancestors(store: Store, *results: Manifest) -> list[Manifest]:
    """Everything that `results` were made from, each once, oldest first, without themselves.

    A result that is gone from the store ends its branch.
    """
    seen = {(r.stage, r.key) for r in results}
    found: list[Manifest] = []

    def visit(refs: Sequence[InputRef]) -> None:
        for ref in refs:
            if (ref.stage, ref.key) in seen:
                continue
            seen.add((ref.stage, ref.key))
            try:
                parent = store.manifest(ref)
            except FileNotFoundError:
                continue
            visit(parent.inputs)
            found.append(parent)

    for result in results:
        visit(result.inputs)
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


def find_named(manifests: Sequence[Manifest], name: str) -> tuple[Manifest, str] | None:
    """The newest of `manifests` (oldest first) that `name` means, and the metric that was named.

    A name is a stage, stage/key (the key may be cut), or a score: [checkpoint/]benchmark[/metric].
    """
    stage, _, key = name.partition("/")
    for m in reversed(manifests):
        if m.stage == stage and m.key.startswith(key):
            return m, ""
    for m in reversed(manifests):
        checkpoint = m.stage.removeprefix(EVALUATION)
        if checkpoint != m.stage:
            score = name.removeprefix(EVALUATION).removeprefix(f"{checkpoint}/")
            for metric in (score, f"{score}/{AVERAGE}"):
                if metric in m.metrics:
                    return m, metric
    return None


def scores_of(store: Store, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """What an evaluation found by benchmark, with everything that makes it comparable."""
    if not manifest.stage.startswith(EVALUATION):
        return {}
    store.fetch(manifest)
    path = store.folder(manifest.stage, manifest.key) / "results.json"
    return {r["name"]: r for r in json.loads(path.read_text())} if path.exists() else {}
