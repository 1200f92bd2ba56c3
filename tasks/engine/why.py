"""Why a stage computes: what differs between it and the earlier result that is most like it."""

from collections.abc import Iterable

from ...configs.settings.base import first_few, flat, meaning, short
from ..store.store import Manifest
from .events import Task

UNKNOWN = ""
"""The digest of an input that is not there yet."""
NEVER = "never computed"
OUTSIDE = "a file that it reads, or klear, changed"


def nearest(earlier: Iterable[Manifest], task: Task) -> tuple[Manifest, list[str]] | None:
    """The earlier result of the stage that differs least from the task, and how; None of none."""
    compared = [(manifest, differences(manifest, task)) for manifest in earlier]
    return min(compared, key=lambda pair: len(pair[1]), default=None)


def reason(differing: list[str]) -> str:
    """The first few differences in a line."""
    return "; ".join(first_few(differing)) or OUTSIDE


def differences(manifest: Manifest, task: Task) -> list[str]:
    """What keeps an earlier result from being this one: `name: old → new`, or whose rows."""
    if manifest.version != task.version:  # its settings may be other ones altogether
        return [f"meaning of the stage: version {manifest.version} → {task.version}"]
    differing = []
    if task.seed is not None and manifest.seed != task.seed:
        differing.append(f"seed: {manifest.seed} → {task.seed}")
    old, now = flat(manifest.settings), flat(meaning(task.settings))
    in_key = flat(meaning(task.settings, as_key=True))
    every = flat(task.settings.model_dump(mode="json"))
    for name in (*now, *(n for n in old if n not in every)):
        if old.get(name) != now.get(name) and (name in old or name in in_key):
            differing.append(f"{name}: {short(old.get(name))} → {short(now.get(name))}")
    for before, artifact in zip(manifest.inputs, task.inputs, strict=False):
        if artifact.digest not in (UNKNOWN, before.digest):
            differing.append(f"other rows from {artifact.stage}")
    return differing
