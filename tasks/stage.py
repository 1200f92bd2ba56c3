"""A stage: a plain function that becomes cached, resumable, tracked and visible in Prefect.

    @stage(version=1)
    def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics: ...

    unique = dedup(problems, settings=settings.dedup)          # inside a run

The cache is the store and nothing else: a result counts while its files are there. Prefect is
told the outcome (state Cached or Completed), MLflow gets a child run for every stage computed.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from configs.base import Settings, key_of
from tasks.about import write_about
from tasks.following import following
from tasks.hardware import this_machine
from tasks.progress import Listener, listening
from tasks.progress_artifact import ProgressArtifact
from tasks.run import Run, StoppedEarly, current_run, git_commit, package_versions
from tasks.stage_log import StageLog
from tasks.stage_record import catch_up, tell
from tasks.store import Artifact, InputRef, file_sha256, stage_key
from tasks.waiting import Waits, somebody_is_asked, waiting
from tasks.watchdog import watched

Metrics = Mapping[str, float]
Body = Callable[..., Metrics]
Reads = Callable[[Any], Iterable[Path]]


def no_files(_: Any) -> Iterable[Path]:
    """Most stages read nothing but their inputs."""
    return ()


@dataclass(frozen=True)
class Stage:
    """A stage body with its name and the version of its meaning."""

    name: str
    version: int
    body: Body
    reads: Reads = no_files

    def named(self, name: str) -> "Stage":
        """The same work under another name: its own place in the store, the UI and MLflow."""
        return replace(self, name=name)

    def __call__(self, *inputs: Artifact, settings: Settings) -> Artifact:
        """Reuse or compute the result; stops the flow after the stage named by `until`."""
        run = current_run()
        if run.planner is not None:
            artifact = run.planner.look(self, inputs, settings, run)
        elif run.orchestrated:
            artifact = self._as_prefect_task(inputs, settings, run)
        else:
            artifact, _ = self.compute(inputs, settings, run)
        if run.until == self.name:
            raise StoppedEarly(self.name)
        return artifact

    def key(self, inputs: tuple[Artifact, ...], settings: Settings, run: Run) -> str:
        seed = run.seed if self.takes_seed else None
        digests = [i.digest for i in inputs] + [file_sha256(f) for f in self.reads(settings)]
        return stage_key(self.name, self.version, key_of(settings), seed, digests)

    @property
    def takes_seed(self) -> bool:
        return "seed" in inspect.signature(self.body).parameters

    def compute(
        self, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> tuple[Artifact, bool]:
        """The result, and whether it was reused. One process computes a key at a time."""
        key = self.key(inputs, settings, run)
        with run.store.lock(f"{self.name}-{key}", wait=False) as free:
            if free:
                return self._compute_locked(key, inputs, settings, run)
        run.display.started(self.name, "another run computes it: waiting")
        with run.store.lock(f"{self.name}-{key}"):
            return self._compute_locked(key, inputs, settings, run)

    def _compute_locked(
        self, key: str, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> tuple[Artifact, bool]:
        found, damage = run.store.find(self.name, key, verify=run.verify)
        if found and not self._must_redo(found, run):
            with self._watch(run):
                found = run.store.share(found)
            manifest = run.store.manifest(found)
            run.story.note(run, found, manifest, "reused", "")
            if manifest.pipeline_run == run.run_id:
                catch_up(run.tracker, found, manifest, inputs, _flat(settings))
            else:
                run.tracker.reused(run.run_id, found)
            run.display.finished(self.name, "cached", found.seconds, found.metrics)
            return found, True
        work = run.store.work(self.name, key)
        why = damage or ("forced" if found else "resuming" if work.exists() else "new")
        run.display.started(self.name, why)
        artifact = self._compute_new(key, work, inputs, settings, run)
        action = "resumed" if why == "resuming" else "computed"
        run.story.note(run, artifact, run.store.manifest(artifact), action, why)
        return artifact, False

    def _must_redo(self, found: Artifact, run: Run) -> bool:
        """Forced, and not already redone: by this very run (a retry does not redo it twice), or by
        another one since this one began (which it may have waited for)."""
        if self.name not in run.force:
            return False
        manifest = run.store.manifest(found)
        is_newer = manifest.created >= run.began.isoformat(timespec="microseconds")
        return manifest.pipeline_run != run.run_id and not is_newer

    def _compute_new(
        self, key: str, work: Path, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> Artifact:
        work.mkdir(parents=True, exist_ok=True)
        with self._watch(run):
            for artifact in inputs:
                run.store.fetch(artifact)
        target = run.store.folder(self.name, key)
        told = run.tracker.stage(run.run_id, self.name, key, _flat(settings), work, target)
        progress = ProgressArtifact(self.name) if run.orchestrated else None
        seed = {"seed": run.seed} if self.takes_seed else {}
        began = time.monotonic()
        try:
            with self._followed(run, told, work, progress):
                metrics = dict(self.body(work, *inputs, settings=settings, **seed))
            seconds = time.monotonic() - began
            with self._watch(run):
                artifact = run.store.publish(
                    work,
                    about=partial(write_about, run.store, inputs, settings),
                    stage=self.name,
                    version=self.version,
                    key=key,
                    settings=settings.model_dump(mode="json"),
                    inputs=tuple(
                        InputRef(stage=i.stage, key=i.key, digest=i.digest) for i in inputs
                    ),
                    metrics={n: float(v) for n, v in metrics.items() if math.isfinite(v)},
                    seconds=seconds,
                    pipeline_run=run.run_id,
                    mlflow_run=told.wait_id(),
                    git_commit=git_commit(),
                    versions=package_versions(),
                    hardware=this_machine(),
                    created=datetime.now(UTC).isoformat(timespec="microseconds"),
                    **seed,
                )
        except BaseException as error:
            if isinstance(error, Waits) and somebody_is_asked():
                told.finish("SCHEDULED")
                run.display.progress(self.name, 0, 0, "waiting for approval")
            else:
                told.finish("FAILED" if isinstance(error, Exception) else "KILLED")
                run.display.finished(self.name, "failed", time.monotonic() - began, {})
            if progress:
                progress.finish(whole=False)
            raise
        if progress:
            progress.finish()
        tell(told, artifact, run.store.manifest(artifact), inputs)
        run.display.finished(self.name, "computed", seconds, artifact.metrics)
        return artifact

    @contextmanager
    def _watch(self, run: Run, log: Path | None = None) -> Iterator[Listener]:
        """What is reported in the block is shown; nothing for too long, and it fails."""

        def listen(done: float, total: float, note: str) -> None:
            beat(f"{done:g} of {total:g} {note}".rstrip())
            run.display.progress(self.name, done, total, note)

        with watched(self.name, run.stall_minutes, log) as beat, listening(listen):
            yield listen

    @contextmanager
    def _followed(
        self, run: Run, told: StageLog, work: Path, progress: ProgressArtifact | None
    ) -> Iterator[None]:
        """The body of the stage: watched, and told to the servers while it runs."""

        def listen(done: float, total: float, note: str) -> None:
            watch(done, total, note)
            follow()
            if progress:
                progress.update(done, total, note)

        log = work / "logs" / "child.log"
        with self._watch(run, log) as watch, following(told, work) as follow, listening(listen):
            yield

    def _as_prefect_task(
        self, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> Artifact:
        made: list[Artifact] = []
        asked: list[Waits] = []

        def body() -> State[Any]:
            try:
                artifact, reused = self.compute(inputs, settings, run)
            except Waits as error:
                if not somebody_is_asked():
                    raise
                asked.append(error)
                return waiting(error)
            made.append(artifact)
            figures = ", ".join(f"{n}={v:g}" for n, v in list(artifact.metrics.items())[:4])
            return Completed(
                name="Cached" if reused else "Completed",
                message=f"{artifact.stage}/{artifact.key}  {figures}",
            )

        # Called directly, never submitted: only the main thread can be cancelled at once.
        Task(
            fn=body,
            name=self.name,
            description=inspect.getdoc(self.body),
            task_run_name=self.name,
            cache_policy=NO_CACHE,  # the store is the cache
            persist_result=False,
        )()
        if asked:
            raise asked[0]
        return made[0]


def stage(version: int, reads: Reads = no_files) -> Callable[[Body], Stage]:
    """Make a stage of `fn(out, *inputs, settings=…[, seed=…]) -> Metrics`.

    Bump `version` when the meaning of the result changes: older results are then left alone.
    `reads(settings)` names the files outside of the store that the body reads: their content is
    part of the key, so an edited file is noticed.
    """

    def wrap(body: Body) -> Stage:
        return Stage(name=body.__name__, version=version, body=body, reads=reads)

    return wrap


def _flat(settings: Settings, prefix: str = "") -> dict[str, str]:
    """Settings as dotted names, for MLflow's parameter table."""
    flat: dict[str, str] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = str(value)
    return flat
