"""What a shared store holds, seen from a machine that has little of it."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.cli import store as store_command
from flows.cli.main import main
from flows.forms.stage_forms import chosen_inputs
from tasks.store.care import BOTH, HERE, SHARED, results, shared_waste
from tasks.store.manifest import InputRef
from tasks.store.shared import SharedStore
from tasks.store.store import Artifact


def made(
    store: SharedStore, stage: str, key: str, *inputs: Artifact, days: float = 30.0
) -> Artifact:
    """A result that was published so many days ago."""
    work = store.work(stage, key)
    work.mkdir(parents=True)
    (work / "kept.txt").write_text(f"{stage} {key}")
    when = datetime.fromtimestamp(time.time() - days * 86_400, UTC).isoformat()
    return store.publish(
        work, stage=stage, version=1, key=key, settings={}, seconds=1.0, pipeline_run="r",
        created=when, inputs=tuple(
            InputRef(stage=i.stage, key=i.key, digest=i.digest) for i in inputs
        ),
    )  # fmt: skip


@pytest.fixture
def machines(tmp_path: Path) -> tuple[SharedStore, SharedStore]:
    url = f"file://{tmp_path}/bucket"
    return SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)


def test_every_result_is_listed_with_the_place_where_it_is(machines):
    one, two = machines
    made(one, "collect", "a" * 16)
    made(two, "collect", "b" * 16, days=20)
    assert [(r.manifest.key[0], r.where) for r in results(two, "collect")] == [
        ("a", SHARED),
        ("b", BOTH),
    ]
    assert results(two, "dedup") == []
    two.objects.remove("collect")
    assert [r.where for r in results(two)] == [HERE]


def test_the_latest_input_of_a_stage_may_be_on_the_shared_store_alone(machines):
    one, two = machines
    made(two, "collect", "b" * 16, days=20)
    newest = made(one, "collect", "a" * 16, days=10)
    assert chosen_inputs({"collect": "latest"}, two)["collect"].key == newest.key
    assert chosen_inputs({"collect": "aaaaaa"}, two)["collect"].digest == newest.digest


def test_what_a_page_was_made_from_stays_wherever_the_page_is(machines):
    one, two = machines
    needed = made(one, "collect", "a" * 16)
    middle = made(one, "dedup", "c" * 16, needed)
    waste = made(one, "collect", "d" * 16)
    made(one, "collect", "e" * 16, days=1)
    made(one, "report", "f" * 16, middle)
    found = shared_waste(two, days=7)
    assert [r.manifest.key for r in found] == [waste.key]
    two.remove_shared("collect", waste.key)
    assert shared_waste(two, days=7) == []
    assert two.find("collect", waste.key) == (None, "")
    assert two.find("collect", needed.key)[0]
    assert not [n for n in two.objects.names() if waste.key in n]


def test_what_an_unreadable_page_may_need_is_kept(machines, monkeypatch, capsys):
    """As a machine with an older klear sees the page of a newer one."""
    one, two = machines
    needed = made(one, "collect", "a" * 16)
    page = made(one, "report", "f" * 16, needed)
    name = f"report/{page.key}/manifest.json"
    newer = (one.objects.read(name) or b"").replace(b'"format": 1', b'"format": 99')
    one.objects.write(name, newer, new=False)
    assert shared_waste(two, days=7) == []
    monkeypatch.setattr(store_command, "open_store", lambda _: two)
    assert main(["store", "gc", "--shared", "--yes"]) == 0
    assert f"report/{page.key} cannot be read: results are kept" in capsys.readouterr().out
    assert two.find("collect", needed.key)[0]
    one.objects.write(name, newer.replace(b'"format": 99', b'"format": 1'), new=False)
    assert shared_waste(two, days=7) == []
    one.objects.remove("report")
    assert [r.manifest.key for r in shared_waste(two, days=7)] == [needed.key]


def test_the_command_lists_first_and_removes_when_told(machines, tmp_path, monkeypatch, capsys):
    one, _ = machines
    made(one, "collect", "d" * 16)
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KLEAR_STORE", one.objects.url)
    assert main(["store", "gc", "--shared"]) == 0
    assert "would go" in capsys.readouterr().out
    assert main(["store", "ls"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(SHARED)
    assert main(["lineage", "collect"]) == 0
    assert "in the shared store alone" in capsys.readouterr().out
    assert main(["store", "gc", "--shared", "--yes"]) == 0
    assert "removed" in capsys.readouterr().out
    assert one.objects.names() == []
