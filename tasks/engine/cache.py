"""One key of a stage: locked, found in the store, or computed and published there."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...eval.progress import Listener, listening
from ...training.launch.result_files import finite_metrics, resuming
from ..store.hardware import this_machine
from ..store.lineage import manifests_here
from ..store.store import Artifact, InputRef, Manifest
from .events import Failed, Progress, Published, Sealing, Started, Task, Waiting
from .run import Run, git_commit, package_versions
from .scheduler import watched
from .why import NEVER, nearest, reason

FORCED = "forced"
Metrics = Mapping[str, float]
Body = Callable[..., Metrics]


@dataclass(frozen=True)
class Computation:
    """What computes one key, for one run."""

    task: Task
    body: Body
    run: Run

    def result(self) -> Artifact:
        """The result, reused or computed. One process computes a key at a time."""
        name, store = f"{self.task.stage}-{self.task.key}", self.run.store
        with store.lock(name, wait=False) as free:
            if free:
                return self._locked()
        self.run.tell(Waiting(self.task))
        with store.lock(name):
            return self._locked()

    def _locked(self) -> Artifact:
        task, run = self.task, self.run
        published, damage = run.store.find(task.stage, task.key, verify=run.verify)
        if published and not self._must_redo(published):
            return self._reused(published)
        work = run.store.work(task.stage, task.key)
        resumes = not damage and not published and work.exists()
        why, earlier = FORCED if published else damage, ""
        if not why:
            why, earlier = self._what_differs()
        shown_why = resuming(work) if resumes else why
        run.tell(Started(task, shown_why, work))
        artifact, manifest = self._computed(work, why, earlier)
        run.tell(
            Published(task, artifact, manifest, "resumed" if resumes else "computed", shown_why)
        )
        return artifact

    def _what_differs(self) -> tuple[str, str]:
        """Why there is no result yet, and the earlier one that it was compared with."""
        earlier = filter(None, manifests_here(self.run.store, self.task.stage).values())
        if closest := nearest(earlier, self.task):
            manifest, differing = closest
            return reason(differing), f"{manifest.stage}/{manifest.key}"
        return NEVER, ""

    def _must_redo(self, published: Artifact) -> bool:
        """Forced, and not already redone: by this very run (a retry does not redo it twice), or by
        another one since this one began (which it may have waited for)."""
        if self.task.stage not in self.run.force:
            return False
        manifest = self.run.store.manifest(published)
        is_newer = manifest.created >= self.run.began.isoformat(timespec="microseconds")
        return manifest.pipeline_run != self.run.run_id and not is_newer

    def _reused(self, published: Artifact) -> Artifact:
        store = self.run.store
        with self._watched():
            artifact = store.share(published)
        self.run.tell(Published(self.task, artifact, store.manifest(artifact), "reused"))
        return artifact

    def _computed(self, work: Path, why: str, earlier: str) -> tuple[Artifact, Manifest]:
        """Run the body in `work` and publish its files."""
        task, run = self.task, self.run
        work.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        try:
            with self._watched(work / "logs" / "child.log") as listen:
                for artifact in task.inputs:
                    run.store.fetch(artifact)
                listen(0, 0, "")
                began = time.monotonic()
                seed = {} if task.seed is None else {"seed": task.seed}
                metrics = self.body(work, *task.inputs, settings=task.settings, **seed)
                seconds = time.monotonic() - began
                listen(0, 0, "publishing")
                artifact = run.store.publish(
                    work, seal=self._seal, **self._facts(metrics, seconds, why, earlier)
                )
        except BaseException as error:
            run.tell(Failed(task, error, time.monotonic() - began))
            raise
        return artifact, run.store.manifest(artifact)

    def _seal(self, manifest: Manifest, work: Path) -> Manifest:
        """The manifest with what observers add to it."""
        sealing = Sealing(self.task, manifest, work)
        self.run.tell(sealing)
        return manifest.model_copy(update=sealing.links)

    def _facts(self, metrics: Metrics, seconds: float, why: str, earlier: str) -> dict[str, object]:
        """What the manifest says beside the files."""
        task = self.task
        return {
            "stage": task.stage,
            "version": task.version,
            "key": task.key,
            "settings": task.settings.model_dump(mode="json"),
            "seed": task.seed,
            "inputs": tuple(
                InputRef(stage=i.stage, key=i.key, digest=i.digest) for i in task.inputs
            ),
            "metrics": finite_metrics({n: float(v) for n, v in metrics.items()}),
            "seconds": seconds,
            "pipeline_run": self.run.run_id,
            "git_commit": git_commit(),
            "versions": package_versions(),
            "hardware": this_machine(),
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "why": why,
            "earlier": earlier,
        }

    @contextmanager
    def _watched(self, log: Path | None = None) -> Iterator[Listener]:
        """Pass on what the block reports; after too long a silence it fails with the end of
        `log`."""
        stage, run = self.task.stage, self.run

        def listen(done: float, total: float, note: str) -> None:
            beat(f"{done:g} of {total:g} {note}".rstrip())
            run.tell(Progress(stage, done, total, note))

        with watched(stage, run.stall_minutes, log) as beat, listening(listen):
            yield listen
