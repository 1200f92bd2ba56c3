"""What Prefect is told of a stage: one task run with its edges, from its start to its end."""

import json
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

import pytest
from prefect.states import Cancelling

from klear.configs.settings.base import Settings
from klear.tasks.engine.events import Failed, Progress, Published, Started, Task, Waiting
from klear.tasks.observe import prefect
from klear.tasks.observe.prefect import (
    SECONDS_BETWEEN_PROGRESS,
    ArtifactSender,
    PrefectObserver,
    form_url,
)
from klear.tasks.store.store import Artifact

ROWS = Artifact(stage="rows", key="k", digest="d", folder=Path(), metrics={"kept": 3.0}, seconds=3)
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


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, str | None]]:
    """(id, content, description) of each artifact that is made or updated."""
    pages: list[tuple[Any, Any, str | None]] = []

    def create(new: Any) -> SimpleNamespace:
        pages.append((uuid4(), new.data, new.description))
        return SimpleNamespace(id=pages[-1][0])

    client = SimpleNamespace(
        create_artifact=create,
        update_artifact=lambda id_, new: pages.append((id_, new.data, new.description)),
        read_deployment_by_name=lambda _: SimpleNamespace(id="form"),
    )
    monkeypatch.setattr(ArtifactSender, "put", lambda _, job: job(client))
    return pages


def test_the_link_that_runs_a_stage_again_is_its_form_filled_in_for_both_uis() -> None:
    parameters = {"stage": "sft", "changes": "sft.note=100 %\nsft.epochs=2", "mixed": False}
    text = parse_qs(urlsplit(form_url("id", parameters)).query)["parameters"][0]
    for decoded in (text, unquote(text)):  # the updated UI decodes once, the other one twice
        assert json.loads(decoded) == parameters
    assert form_url("", parameters) == ""


def test_the_page_of_a_stage_leads_to_its_form_with_these_inputs_and_settings(sent, pages):
    fields = {"profile": "tiny", "seed": 0, "changes": {"model": "sft.epochs=2"}}
    observer = PrefectObserver(str(uuid4()), lambda run: f"http://mlflow/{run}", fields)
    model = Task("model", 1, "k2", (ROWS,), Settings())
    result = Artifact(stage="model", key="k2", digest="d", folder=Path(), mlflow_run="run")
    observer.on(Failed(model, OSError("disk full"), 1.0))
    observer.on(Published(model, result, MANIFEST, "computed", "new"))
    failed, computed = (unquote(text.partition("parameters=")[2]) for _, text, _ in pages)
    same = {"profile": "tiny", "seed": 0, "stage": "model", "changes": "sft.epochs=2"}
    assert json.loads(failed.rstrip(")")) == {**same, "other_inputs": "rows=k"}
    assert json.loads(computed.rstrip(")")) == {**same, "inputs_as_of": "model/k2"}
    assert "[MLflow](http://mlflow/run)" in pages[1][1]


def test_a_stage_under_way_has_a_page_that_leads_to_mlflow_and_its_progress_both_updated(
    sent, pages, monkeypatch
):
    """The clock moves a second between reports of a stage with a hundred steps."""
    now = [0.0]
    monkeypatch.setattr(prefect.time, "monotonic", lambda: now[0])
    task, url = Task("rows", 1, "k", (), Settings()), "http://mlflow/".__add__
    observer = PrefectObserver(str(uuid4()), url, stage_url=url)
    observer.on(Started(task, "never computed", Path()))
    for step in range(101):
        now[0] = float(step)
        observer.on(Progress("rows", step, 100, "loss 1.2"))
    result = ROWS.model_copy(update={"mlflow_run": "run"})
    observer.on(Published(task, result, MANIFEST, "computed", "new"))
    (id_, *first), *updates, (last_id, *last) = (p for p in pages if isinstance(p[1], float))
    assert first == [10.0, "rows: 10 of 100 (10 %), 1/s, 1 min 30 s left, loss 1.2"]
    assert len(updates) == 100 / SECONDS_BETWEEN_PROGRESS - 1
    assert (last_id, last) == (id_, [100.0, "rows: done"])
    (id_, first_text, _), (last_id, last_text, _) = (p for p in pages if "MLflow" in str(p[1]))
    assert first_text == "[MLflow](http://mlflow/rows)"
    assert last_text.endswith("[MLflow](http://mlflow/run)")
    assert last_id == id_


def names(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["task_run"].name, e["validated_state"].name) for e in events]


def test_a_stage_is_one_task_run_whose_edges_lead_to_its_inputs_and_another_if_called_again(sent):
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
    sent.clear()
    observer.on(Started(rows, "never computed", Path()))
    observer.on(Failed(rows, KeyboardInterrupt(), 1.0))  # with its run
    observer.on(Published(rows, ROWS, MANIFEST, "resumed", "resuming"))
    assert [state for _, state in names(sent)] == ["Running", "Cancelled", "Completed"]
    assert len({e["task_run"].id for e in sent}) == 2


@pytest.mark.parametrize("of_worker", [False, True])
def test_a_cancelled_run_that_no_worker_ends_ends_itself(monkeypatch, of_worker):
    """A worker of Prefect 3.7 may forget a run that it cancelled once, and that was retried."""
    looks = []

    def cancelling(*_: Any) -> Any:
        looks.append(1)
        return Cancelling()

    monkeypatch.setattr(prefect, "SECONDS_BETWEEN_LOOKS", 0.001)
    monkeypatch.setattr(prefect, "emit_event", lambda *_: None)
    monkeypatch.setattr(prefect, "get_client", lambda **_: nullcontext())
    monkeypatch.setattr(prefect, "state_of", cancelling)
    monkeypatch.setattr(prefect, "is_worker_run", lambda: of_worker)
    with pytest.raises(KeyboardInterrupt), prefect.watch_cancel_requests(str(uuid4())):
        time.sleep(600)
    assert len(looks) == (1 + prefect.LOOKS_AT_A_WORKER if of_worker else 1)
