"""One key of a stage: locked, found in the store, or computed and published there."""

import pkgutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from ...configs.files import POLL_S
from ...eval.progress import listening, report
from ...training.launch.result_files import LOGS, finite_metrics, resuming
from ..store.hardware import this_machine
from ..store.lineage import manifests_here
from ..store.store import Artifact, InputRef, Manifest, Seal, Store
from .events import Failed, Progress, Published, Sealing, Started, Task, Waiting
from .run import Run, active, git_commit, package_versions
from .scheduler import Interrupted, check_interrupt
from .stage_process import run_process
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
    preload: Collection[str] = ()
    """Modules that a process for it had better imported already."""

    def result(self) -> Artifact:
        """The result, reused or computed. One process computes a key at a time."""
        task, run = self.task, self.run
        with self._alone():
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

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until nobody else computes the key."""
        name, store = f"{self.task.stage}-{self.task.key}", self.run.store
        with ExitStack() as held:
            if not held.enter_context(store.lock(name, wait=False)):
                self.run.tell(Waiting(self.task))
                while not held.enter_context(store.lock(name, wait=False)):
                    held.close()  # its file, which is not locked
                    try:
                        check_interrupt(waiting=True)
                    except Interrupted as error:
                        self.run.tell(Failed(self.task, error, 0.0))
                        raise
                    time.sleep(POLL_S)
            yield

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
        if store.is_shared:  # its server may not answer
            published = self._in_process(share, {"store": store, "artifact": published})
        self.run.tell(Published(self.task, published, store.manifest(published), "reused"))
        return published

    def _computed(self, work: Path, why: str, earlier: str) -> tuple[Artifact, Manifest]:
        """Run the body in `work` and publish its files."""
        task, run = self.task, self.run
        began = time.monotonic()
        try:
            facts = self._facts(why, earlier)
            if "<locals>" in self.body.__qualname__:  # no other process can import it
                with listening(self._listen):
                    artifact = compute(self._seal, self.body, task, run, facts)
            else:
                body = f"{self.body.__module__}:{self.body.__qualname__}"
                arguments = {"body": body, "task": task, "run": run.unobserved(), "facts": facts}
                artifact = self._in_process(compute, arguments)
        except BaseException as error:
            run.tell(Failed(task, error, time.monotonic() - began))
            raise
        return artifact, run.store.manifest(artifact)

    @property
    def _in_process(self) -> Callable[..., Artifact]:
        """Calls a function in a process of its own, which is ended when it shows no progress for
        too long."""
        task = self.task
        return partial(
            run_process,
            stage=task.stage,
            stall_minutes=self.run.stall_minutes,
            listen=self._listen,
            log=self.run.store.work(task.stage, task.key) / LOGS / "child.log",
            answer=self._seal,
            preload=self.preload,
        )

    def _listen(self, done: float, total: float, note: str) -> None:
        self.run.tell(Progress(self.task.stage, done, total, note))

    def _seal(self, manifest: Manifest, work: Path) -> Manifest:
        """The manifest with what observers add to it."""
        sealing = Sealing(self.task, manifest, work)
        self.run.tell(sealing)
        return manifest.model_copy(update=sealing.links)

    def _facts(self, why: str, earlier: str) -> dict[str, object]:
        """What the manifest says beside the files, as far as it is clear from the start."""
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
            "pipeline_run": self.run.run_id,
            "git_commit": git_commit(),
            "versions": package_versions(),
            "hardware": this_machine(),
            "why": why,
            "earlier": earlier,
        }


def compute(
    seal: Seal, body: Body | str, task: Task, run: Run, facts: Mapping[str, Any]
) -> Artifact:
    """Run the body of a stage, which may be named `module:name`, and publish its files."""
    if isinstance(body, str):
        body = cast(Body, pkgutil.resolve_name(body).body)
    store = run.store
    work = store.work(task.stage, task.key)
    # The process of a killed run may take a moment to end: two would write the same files.
    with store.lock(f"process-{task.stage}-{task.key}"), active(run):
        work.mkdir(parents=True, exist_ok=True)
        for artifact in task.inputs:
            store.fetch(artifact)
        report(0, 0, "")
        began = time.monotonic()
        seed = {} if task.seed is None else {"seed": task.seed}
        metrics = body(work, *task.inputs, settings=task.settings, **seed)
        seconds = time.monotonic() - began
        report(0, 0, "publishing")
        return store.publish(
            work,
            seal=seal,
            metrics=finite_metrics({n: float(v) for n, v in metrics.items()}),
            seconds=seconds,
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            **facts,
        )


def share(_: Seal, store: Store, artifact: Artifact) -> Artifact:
    """A published result as everybody sees it."""
    return store.share(artifact)
