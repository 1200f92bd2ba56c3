"""A progress bar on the stage's task run in the Prefect UI."""

import contextvars
import logging
import threading
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

SECONDS_BETWEEN_UPDATES = 3.0
LAST_WORD_S = 5.0


class ProgressArtifact:
    """Created at the first update, best effort: a server that is slow or away must neither fail a
    stage nor make it wait, so a thread sends the latest figure and drops those in between."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._id: UUID | None = None
        self._latest: tuple[float, str] | None = None
        self._fresh, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def update(self, done: float, total: float, note: str = "") -> None:
        """Show `done` of `total`; without a total there is nothing to show."""
        if total <= 0:
            return
        count = f"{self._stage}: {done:,.6g} of {total:,.6g}"
        self._latest = min(100.0, 100.0 * done / total), f"{count} {note}".rstrip()
        self._fresh.set()
        if self._thread is None:  # with this context: an artifact belongs to its task run
            run = contextvars.copy_context().run
            self._thread = threading.Thread(target=run, args=(self._keep_sending,), daemon=True)
            self._thread.start()

    def finish(self, *, whole: bool = True) -> None:
        """The last figure, 100 % if the stage is `whole`; waits for it a few seconds at most."""
        if self._thread is None:
            return
        if whole and self._latest:
            self._latest = 100.0, self._latest[1]
        self._over.set()
        self._fresh.set()
        self._thread.join(LAST_WORD_S if whole else 0.0)

    def _keep_sending(self) -> None:
        over = False
        while not over:
            self._fresh.wait()
            self._fresh.clear()
            over = self._over.is_set()
            self._send()
            self._over.wait(SECONDS_BETWEEN_UPDATES)

    def _send(self) -> None:
        if self._latest is None:
            return
        percent, about = self._latest
        try:
            if self._id is None:
                key = f"progress-{self._stage.replace('_', '-')}"
                made = create_progress_artifact(percent, key=key, description=about)
                self._id = made if isinstance(made, UUID) else None
            else:
                update_progress_artifact(artifact_id=self._id, progress=percent, description=about)
        except Exception as error:
            logging.getLogger("klear").debug("progress of %s not shown: %s", self._stage, error)
