"""What Prefect is told of a stage: one task run with its edges, from its start to its end."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from klear.configs.settings.base import Settings
from klear.tasks.engine.events import Failed, Published, Started, Task, Waiting
from klear.tasks.observe import prefect
from klear.tasks.observe.prefect import PrefectObserver
from klear.tasks.store.store import Artifact

ROWS = Artifact(stage="rows", key="k", digest="d", folder=Path(), metrics={"kept": 3.0})
MANIFEST: Any = SimpleNamespace(why="sources: a → b")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that Prefect's own client would send."""
    events: list[dict[str, Any]] = []

    def emit(**fields: Any) -> int:
        events.append({**fields, "task_run": fields["task_run"].model_copy(deep=True)})
        return len(events)

    monkeypatch.setattr(prefect, "emit_task_run_state_change_event", emit)
    return events


def names(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["task_run"].name, e["validated_state"].name) for e in events]


def test_a_stage_is_one_task_run_whose_edges_lead_to_its_inputs(sent):
    rows = Task("rows", 1, "k", (), Settings(), group="data")
    model = Task("model", 1, "k", (ROWS,), Settings())
    observer = PrefectObserver(str(uuid4()))
    observer.on(Published(rows, ROWS, MANIFEST, "reused"))
    for event in (Waiting(model), Started(model, "never computed", Path())):
        observer.on(event)
    observer.on(Failed(model, OSError("disk full"), 1.0))
    expected = [("data: rows", "Cached"), ("model", "Running"), ("model", "Failed")]
    assert names(sent) == expected
    assert sent[0]["validated_state"].message == "rows/k  kept 3; it was computed: sources: a → b"
    (edge,) = sent[-1]["task_run"].task_inputs["wait_for"]
    assert edge.id == sent[0]["task_run"].id
    assert (sent[2]["follows"], sent[2]["initial_state"].name) == (2, "Running")
    assert Counter(e["task_run"].id for e in sent).total() == 3
    assert sent[2]["task_run"].total_run_time >= sent[1]["task_run"].total_run_time
    assert sent[2]["validated_state"].message == "OSError: disk full"


def test_a_stage_that_ends_with_its_run_is_cancelled_and_called_again_it_is_another_task_run(sent):
    task, observer = Task("rows", 1, "k", (), Settings()), PrefectObserver(str(uuid4()))
    observer.on(Started(task, "never computed", Path()))
    observer.on(Failed(task, KeyboardInterrupt(), 1.0))
    observer.on(Published(task, ROWS, MANIFEST, "resumed", "resuming"))
    assert [state for _, state in names(sent)] == ["Running", "Cancelled", "Completed"]
    assert len({e["task_run"].id for e in sent}) == 2
