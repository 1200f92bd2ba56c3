"""Progress in the UI: the latest figure arrives, and a server that is away holds nobody up."""

import threading
import time
import uuid
from typing import Any

import pytest

from tasks import progress_artifact
from tasks.progress_artifact import ProgressArtifact


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, str]]:
    calls: list[tuple[str, float, str]] = []

    def create(progress: float, key: str, description: str) -> uuid.UUID:
        calls.append((key, progress, description))
        return uuid.uuid4()

    def update(artifact_id: Any, progress: float, description: str) -> None:
        calls.append(("", progress, description))

    monkeypatch.setattr(progress_artifact, "SECONDS_BETWEEN_UPDATES", 0.01)
    monkeypatch.setattr(progress_artifact, "create_progress_artifact", create)
    monkeypatch.setattr(progress_artifact, "update_progress_artifact", update)
    return calls


def test_the_last_figure_is_the_whole(sent: list[tuple[str, float, str]]):
    bar = ProgressArtifact("rl_math")
    for step in range(1, 5):
        bar.update(step, 4, "reward 0.5")
    bar.finish()
    assert sent[0][0] == "progress-rl-math"
    assert sent[-1][1] == 100.0
    assert sent[-1][2] == "rl_math: 4 of 4 reward 0.5"


def test_a_failed_stage_keeps_the_figure_it_had(sent: list[tuple[str, float, str]]):
    bar = ProgressArtifact("sft")
    bar.update(1, 4)
    bar.finish(whole=False)
    assert bar._thread is not None
    bar._thread.join(60)  # else its last word goes to Prefect itself, once `sent` is gone
    assert {percent for _, percent, _ in sent} == {25.0}


def test_a_stage_without_a_total_has_no_bar(sent: list[tuple[str, float, str]]):
    bar = ProgressArtifact("base")
    bar.update(0, 0, "waiting for the GPU")
    bar.finish()
    assert sent == []


def test_a_server_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    hang = threading.Event()
    monkeypatch.setattr(progress_artifact, "LAST_WORD_S", 0.1)
    monkeypatch.setattr(
        progress_artifact, "create_progress_artifact", lambda *_, **__: hang.wait(120)
    )
    began = time.monotonic()
    bar = ProgressArtifact("judge")
    for step in range(1_000):
        bar.update(step, 1_000)
    bar.finish()
    assert time.monotonic() - began < 30
    hang.set()
    assert bar._thread is not None
    bar._thread.join(60)  # it would send into the next test
    assert not bar._thread.is_alive()


def test_a_figure_that_the_server_refuses_stops_neither_the_stage_nor_the_next_figure(
    sent: list[tuple[str, float, str]], monkeypatch: pytest.MonkeyPatch
):
    refused = threading.Event()
    create = progress_artifact.create_progress_artifact

    def refuse_once(progress: float, key: str, description: str) -> Any:
        if not refused.is_set():
            refused.set()
            raise OSError("connection refused")
        return create(progress, key=key, description=description)

    monkeypatch.setattr(progress_artifact, "create_progress_artifact", refuse_once)
    bar = ProgressArtifact("judge")
    bar.update(1, 2)
    assert refused.wait(60)
    bar.finish()
    assert sent == [("progress-judge", 100.0, "judge: 1 of 2")]
