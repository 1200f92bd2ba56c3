"""Progress in the UI: the latest figure arrives, and a server that is away holds nobody up."""

import threading
import uuid
from typing import Any

import pytest

from tasks.tracking import prefect_states
from tasks.tracking.prefect_states import ProgressArtifact


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, str]]:
    calls: list[tuple[str, float, str]] = []

    def create(progress: float, key: str, description: str) -> uuid.UUID:
        calls.append((key, progress, description))
        return uuid.uuid4()

    def update(artifact_id: Any, progress: float, description: str) -> None:
        calls.append(("", progress, description))

    monkeypatch.setattr(prefect_states, "create_progress_artifact", create)
    monkeypatch.setattr(prefect_states, "update_progress_artifact", update)
    return calls


def test_the_last_figure_is_the_whole(sent: list[tuple[str, float, str]]):
    bar = ProgressArtifact("rl_math")
    for step in range(1, 5):
        bar.update(step, 4, "reward 0.5")
    bar.finish()
    assert sent[0] == ("progress-rl-math", 25.0, "rl_math: 1 of 4 reward 0.5")
    assert sent[-1] == ("", 100.0, "rl_math: 4 of 4 reward 0.5")


def test_a_failed_stage_keeps_its_figure_and_one_without_a_total_has_none(sent):
    for total in (4, 0):
        bar = ProgressArtifact("sft")
        bar.update(1, total)
        bar.finish(whole=False)
    assert [percent for _, percent, _ in sent] == [25.0]


def test_a_server_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    hang, asked = threading.Event(), []

    def create(*_: Any, **__: Any) -> None:
        asked.append(1)
        hang.wait()

    monkeypatch.setattr(prefect_states, "SECONDS_BETWEEN_UPDATES", 0.0)
    monkeypatch.setattr(prefect_states, "LAST_WORD_S", 0.1)
    monkeypatch.setattr(prefect_states, "create_progress_artifact", create)
    bar = ProgressArtifact("judge")
    for step in range(1_000):
        bar.update(step, 1_000)
    bar.finish()  # returns although nobody was answered
    assert len(asked) == 1
    hang.set()


def test_a_figure_that_the_server_refuses_stops_neither_the_stage_nor_the_next(
    sent: list[tuple[str, float, str]], monkeypatch: pytest.MonkeyPatch
):
    create, refused = prefect_states.create_progress_artifact, []

    def refuse_once(progress: float, key: str, description: str) -> Any:
        if not refused:
            refused.append(progress)
            raise OSError("connection refused")
        return create(progress, key=key, description=description)

    monkeypatch.setattr(prefect_states, "create_progress_artifact", refuse_once)
    bar = ProgressArtifact("judge")
    bar.update(1, 2)
    bar.finish()
    assert refused == [50.0]
    assert sent == [("progress-judge", 100.0, "judge: 1 of 2")]
