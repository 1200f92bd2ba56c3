"""A stage: a plain function that becomes cached, resumable and observed.

    @stage(version=1)
    def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics: ...

    unique = dedup(problems, settings=settings.dedup)          # inside a run

The cache is the store and nothing else: a result counts while its files are there.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...configs.settings.base import Settings, key_of
from ..store.store import Artifact, file_sha256, stage_key
from .cache import Body, Computation, Metrics
from .events import Task
from .run import Run, current_run

__all__ = ["Metrics", "Stage", "stage"]
Reads = Callable[[Any], Iterable[Path | tuple[str, Path]]]
"""Files, or (name, file) where the name means something, as in the folder of a model."""
Decorator = Callable[[Body], "Stage"]
_modules: set[str] = set()
"""Those that have stages: processes of stages are forked with all of them imported."""


def stage(version: int, reads: Reads = lambda _: (), group: str = "") -> Decorator:
    """Make a stage of `fn(out, *inputs, settings=…[, seed=…]) -> Metrics`.

    Bump `version` when the meaning of the result changes: older results are then left alone.
    `reads(settings)` names the files outside of the store that the body reads: their content is
    part of the key, so an edited file is noticed. A run is shown with the stage below `group`.
    """

    def decorate(body: Body) -> Stage:
        _modules.add(body.__module__)
        return Stage(body.__name__, version, body, reads, group)

    return decorate


@dataclass(frozen=True)
class Stage:
    """A stage body with its name and the version of its meaning."""

    name: str
    version: int
    body: Body
    reads: Reads = lambda _: ()
    group: str = ""

    def named(self, name: str) -> "Stage":
        """The same work under another name: its own place in the store, the UI and MLflow."""
        return replace(self, name=name)

    def __call__(self, *inputs: Artifact, settings: Settings) -> Artifact:
        """Reuse or compute the result."""
        run = current_run()
        task = self.task(inputs, settings, run, self.key(inputs, settings, run))
        return Computation(task, self.body, run, _modules).result()

    def key(self, inputs: tuple[Artifact, ...], settings: Settings, run: Run) -> str:
        digests = [i.digest for i in inputs] + [_content(f) for f in self.reads(settings)]
        return stage_key(self.name, self.version, key_of(settings), self._seed(run), digests)

    def task(
        self, inputs: tuple[Artifact, ...], settings: Settings, run: Run, key: str = ""
    ) -> Task:
        """What the run would compute; the key is unknown while an input is."""
        return Task(self.name, self.version, key, inputs, settings, self._seed(run), self.group)

    @property
    def takes_seed(self) -> bool:
        return "seed" in inspect.signature(self.body).parameters

    def _seed(self, run: Run) -> int | None:
        return run.seed if self.takes_seed else None


def _content(file: Path | tuple[str, Path]) -> str:
    """Its digest; a model that several stages read is read once, unless it changes."""
    name, path = file if isinstance(file, tuple) else ("", file)
    stat = path.stat()
    return f"{_digest(path, stat.st_size, stat.st_mtime_ns)} {name}".rstrip()


@cache
def _digest(path: Path, size: int, changed_ns: int) -> str:
    return file_sha256(path)
