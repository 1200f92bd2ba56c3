"""A stage: a plain function that becomes cached, resumable, tracked and visible in Prefect.

    @stage(version=1)
    def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics: ...

    unique = dedup(problems, settings=settings.dedup)          # inside a run

The cache is the store and nothing else: a result counts while its files are there. Prefect is
told the outcome (state Cached or Completed), MLflow gets a child run for every stage computed.
"""

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed, Failed

from ...configs.files import replace_text
from ...configs.settings.base import Settings, key_of
from ...configs.settings.judging import JudgeSettings
from ...eval.benchmarks.grades import GRADED
from ...training.launch.result_files import finite_metrics, resuming
from ..observe.log_result import log_result
from ..observe.prefect_states import ApprovalRequired, is_worker_run, waiting_state
from ..observe.run_tracker import StageLog
from ..report.card import write_card
from ..store.hardware import this_machine
from ..store.store import Artifact, InputRef, Manifest, file_sha256, stage_key
from .progress import Listener, figure_of, listening
from .run import Run, as_params, current_run, git_commit, package_versions
from .scheduler import Interrupted, watched

JUDGED = {"rollouts.parquet", "results.json"}
"""Files that make graded examples worth their seconds."""
INTERRUPTED = "ended with its run; its work is kept, and the next run goes on with it"
Metrics = Mapping[str, float]
Body = Callable[..., Metrics]
Reads = Callable[[Any], Iterable[Path]]
Decorator = Callable[[Body], "Stage"]


def stage(version: int, reads: Reads = lambda _: (), group: str = "") -> Decorator:
    """Make a stage of `fn(out, *inputs, settings=…[, seed=…]) -> Metrics`.

    Bump `version` when the meaning of the result changes: older results are then left alone.
    `reads(settings)` names the files outside of the store that the body reads: their content is
    part of the key, so an edited file is noticed. Prefect shows the stage below `group`.
    """
    return lambda body: Stage(body.__name__, version, body, reads, group)


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
        if run.orchestrated:
            return self._as_prefect_task(inputs, settings, run)
        return self.compute(inputs, settings, run)[0]

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
        work = _Computation(self, key, inputs, settings, run)
        with run.store.lock(f"{self.name}-{key}", wait=False) as free:
            if free:
                return work.result()
        run.display.started(self.name, "another run computes it: waiting")
        with run.store.lock(f"{self.name}-{key}"):
            return work.result()

    def _as_prefect_task(
        self, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> Artifact:
        outcome: Artifact | ApprovalRequired | Interrupted | None = None

        def body() -> State[Any]:
            nonlocal outcome
            state: State[Any] = Failed()
            try:
                outcome, reused = self.compute(inputs, settings, run)
                message = f"{outcome.stage}/{outcome.key}  {figure_of(self.name, outcome.metrics)}"
                state = Completed(name="Cached" if reused else "Completed", message=message)
            except ApprovalRequired as error:
                if not is_worker_run():
                    raise
                outcome = error
                return waiting_state(error)  # settled with the answer, not at the end of the run
            except Interrupted as error:  # to Prefect any other interrupt is a crash
                outcome, state = error, Cancelled(message=INTERRUPTED)
            finally:
                if not isinstance(outcome, ApprovalRequired):
                    run.ended_tasks[str(task_run.id)] = (task, state)
                    run.states[self.name] = state
            return state

        shown = ": ".join(filter(None, (self.group, self.name)))
        # Called in a thread of ours, never submitted: Prefect's pool waits for a stage that hangs.
        task = Task(
            fn=body,
            name=shown,
            description=inspect.getdoc(self.body),
            task_run_name=shown,
            cache_policy=NO_CACHE,  # the store is the cache
            persist_result=False,
        )
        task(wait_for=[run.states[i.stage] for i in inputs if i.stage in run.states])
        if isinstance(outcome, (ApprovalRequired, Interrupted)):
            raise outcome
        assert outcome is not None
        return outcome


@dataclass(frozen=True)
class _Computation:
    """One key of a stage, while its lock is held."""

    stage: Stage
    key: str
    inputs: tuple[Artifact, ...]
    settings: Settings
    run: Run

    def result(self) -> tuple[Artifact, bool]:
        """The result, and whether it was reused."""
        name, run = self.stage.name, self.run
        found, damage = run.store.find(name, self.key, verify=run.verify)
        if found and not self._must_redo(found):
            return self._reused(found), True
        work = run.store.work(name, self.key)
        goes_on = not damage and not found and work.exists()
        why = damage or ("forced" if found else resuming(work) if goes_on else run.why(name))
        run.display.started(name, why)
        artifact = self._computed(work)
        run.note(artifact, "resumed" if goes_on else "computed", why)
        return artifact, False

    def _must_redo(self, found: Artifact) -> bool:
        """Forced, and not already redone: by this very run (a retry does not redo it twice), or by
        another one since this one began (which it may have waited for)."""
        if self.stage.name not in self.run.force:
            return False
        manifest = self.run.store.manifest(found)
        is_newer = manifest.created >= self.run.began.isoformat(timespec="microseconds")
        return manifest.pipeline_run != self.run.run_id and not is_newer

    def _reused(self, found: Artifact) -> Artifact:
        run = self.run
        with self._watched():
            found = run.store.share(found)
        manifest = run.store.manifest(found)
        if manifest.pipeline_run == run.run_id:
            # An earlier attempt made it, and may have been killed before all of it was logged.
            log = self._log(found.folder, only_unfinished=True)
            log.poll()
            log_result(log, found, manifest, self.inputs)
        run.note(found, "reused", "")
        return found

    def _computed(self, work: Path) -> Artifact:
        """Run the body in `work` and publish what it made; tracked and shown from start to end."""
        stage, run = self.stage, self.run
        work.mkdir(parents=True, exist_ok=True)
        log = self._log(work)
        began = time.monotonic()
        try:
            with self._watched(work / "logs" / "child.log", log) as listen:
                for artifact in self.inputs:
                    run.store.fetch(artifact)
                listen(0, 0, "")
                began = time.monotonic()
                seed = {"seed": run.seed} if stage.takes_seed else {}
                try:
                    metrics = stage.body(work, *self.inputs, settings=self.settings, **seed)
                finally:
                    log.poll()
                seconds = time.monotonic() - began
                listen(0, 0, "publishing")
                artifact = self._publish(work, metrics, seconds, log.wait_id())
        except BaseException as error:
            if isinstance(error, ApprovalRequired) and is_worker_run():
                log.finish("SCHEDULED")
                run.display.progress(stage.name, 0, 0, "waiting for approval")
            else:
                failed = isinstance(error, Exception)
                log.finish("FAILED" if failed else "KILLED")
                outcome = "failed" if failed else "interrupted"
                run.display.finished(stage.name, outcome, time.monotonic() - began, {})
            raise
        log_result(log, artifact, run.store.manifest(artifact), self.inputs)
        return artifact

    def _publish(self, work: Path, metrics: Metrics, seconds: float, mlflow_run: str) -> Artifact:
        """Move `work` into its place in the store, with a manifest that says what made it."""
        run, stage = self.run, self.stage
        return run.store.publish(
            work,
            about=self._pages,
            stage=stage.name,
            version=stage.version,
            key=self.key,
            settings=self.settings.model_dump(mode="json"),
            seed=run.seed if stage.takes_seed else None,
            inputs=tuple(InputRef(stage=i.stage, key=i.key, digest=i.digest) for i in self.inputs),
            metrics=finite_metrics({n: float(v) for n, v in metrics.items()}),
            seconds=seconds,
            pipeline_run=run.run_id,
            mlflow_run=mlflow_run,
            git_commit=git_commit(),
            versions=package_versions(),
            hardware=this_machine(),
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
        )

    def _pages(self, manifest: Manifest, work: Path) -> list[str]:
        """Write what only tells about a result: its card and graded examples."""
        names = write_card(self.run.store, manifest, work)
        judge = getattr(self.settings, "judge", None)
        if not isinstance(judge, JudgeSettings) or not JUDGED & manifest.files.keys():
            return names
        from ..report.grading import grade_some

        asked = work / "problems.parquet"
        try:
            if not asked.exists():  # rollouts
                asked = self.inputs[-1].file("kept.parquet")
            graded = grade_some(work, asked, judge)
        except Exception as error:  # the stage itself is done
            message = "%s: no graded examples: %s"
            logging.getLogger("klear").warning(message, manifest.stage, error)
            return names
        replace_text(work / GRADED, "".join(g.model_dump_json() + "\n" for g in graded))
        return [*names, GRADED]

    def _log(self, folder: Path, *, only_unfinished: bool = False) -> StageLog:
        run, name = self.run, self.stage.name
        params = as_params(self.settings.model_dump(mode="json"))
        made = (run.tracker, run.run_id, name, self.key, params, folder, run.label(name))
        return StageLog(*made, only_unfinished=only_unfinished)

    @contextmanager
    def _watched(self, file: Path | None = None, log: StageLog | None = None) -> Iterator[Listener]:
        """Show what the block reports; after too long a silence it fails with the end of `file`."""

        def listen(done: float, total: float, note: str) -> None:
            beat(f"{done:g} of {total:g} {note}".rstrip())
            self.run.display.progress(self.stage.name, done, total, note)
            if log:
                log.poll(now=False)

        with watched(self.stage.name, self.run.stall_minutes, file) as beat, listening(listen):
            yield listen
