"""A progress bar on the stage's task run in the Prefect UI."""

import logging
import time

from prefect.artifacts import create_progress_artifact, update_progress_artifact

SECONDS_BETWEEN_UPDATES = 3.0  # each update waits for the server


class ProgressArtifact:
    """Created at the first update; best effort, since a busy server must not fail a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._id = None
        self._next = 0.0

    def update(self, done: float, total: float) -> None:
        if total > 0 and time.monotonic() >= self._next:
            self._send(min(100.0, 100.0 * done / total))
            self._next = time.monotonic() + SECONDS_BETWEEN_UPDATES

    def finish(self) -> None:
        if self._id is not None:
            self._send(100.0)

    def _send(self, percent: float) -> None:
        try:
            if self._id is None:
                self._id = create_progress_artifact(
                    percent,
                    key=f"progress-{self._stage.replace('_', '-')}",
                    description=self._stage,
                )
            else:
                update_progress_artifact(artifact_id=self._id, progress=percent)  # type: ignore[arg-type]
        except Exception as error:
            logging.getLogger("klear").debug("progress of %s not shown: %s", self._stage, error)
