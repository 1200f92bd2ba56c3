"""A shared store that was moved, emptied or damaged: whoever has a good result mends it; and what
a machine sees of it that has little itself."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from configs.settings.base import Settings
from flows.cli.main import main
from flows.forms.stage_forms import chosen_inputs
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.care import damaged, results
from tasks.store.shared import ObjectDamaged, SharedStore, StoreUnreachable
from tasks.store.store import Artifact
from tests.tasks.shared_by_hand import KEY, damage_there, fetched, made, problems


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def reused(store: SharedStore, *, verify: bool = False) -> Artifact:
    """The cached result as a stage takes it."""
    found, wrong = store.find("collect", KEY, verify=verify)
    assert found, wrong
    return store.share(found)


def test_a_cached_result_is_published_at_a_new_address_too(url, tmp_path):
    made(SharedStore(tmp_path / "a", url))
    reused(SharedStore(tmp_path / "a", f"{url}_new"))
    assert fetched(SharedStore(tmp_path / "b", f"{url}_new")) == "rows"


def test_what_another_machine_removed_is_published_again_by_the_next_process(url, tmp_path):
    made(SharedStore(tmp_path / "a", url))
    other = SharedStore(tmp_path / "b", url)
    other.objects.remove(f"collect/{KEY}")
    reused(SharedStore(tmp_path / "a", url))
    assert fetched(other) == "rows"


def test_what_another_machine_forced_is_taken_over_at_the_next_cache_hit(url, tmp_path):
    here, there = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    made(here, rows="old")
    assert fetched(there) == "old"
    made(here, rows="new")
    assert reused(SharedStore(tmp_path / "b", url)).file("rows.jsonl").read_text() == "new"


def test_a_forced_result_that_could_not_be_sent_is_sent_later_and_kept(url, tmp_path, monkeypatch):
    store = SharedStore(tmp_path / "a", url)
    made(store, rows="old")
    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "upload", Mock(side_effect=StoreUnreachable("cut")))
        with pytest.raises(StoreUnreachable):
            made(store, rows="new")

    assert reused(SharedStore(tmp_path / "a", url)).file("rows.jsonl").read_text() == "new"
    assert fetched(SharedStore(tmp_path / "b", url)) == "new"


@pytest.mark.parametrize("content", [None, b"", b"row"])
def test_a_result_without_its_files_is_not_found_and_is_replaced(url, tmp_path, content):
    made(SharedStore(tmp_path / "a", url))
    other = SharedStore(tmp_path / "b", url)
    damage_there(other, content)

    found, wrong = other.find("collect", KEY)
    assert found is None
    assert wrong.endswith(f"collect/{KEY}: rows.jsonl is missing or was changed")

    made(other, rows="made again")
    assert problems(other) == []
    assert fetched(SharedStore(tmp_path / "c", url)) == "made again"


def test_a_copy_that_was_changed_here_is_named_and_brought_again_under_verify(url, tmp_path):
    store = SharedStore(tmp_path / "a", url)
    path = made(store).file("rows.jsonl")
    path.write_text("sowr")  # of the same size
    [(_, wrong)] = damaged(store)
    assert wrong.endswith("rows.jsonl was changed since it was published")
    assert path.read_text() == "sowr"

    found = reused(SharedStore(tmp_path / "a", url), verify=True)
    SharedStore(tmp_path / "a", url).fetch(found)

    assert path.read_text() == "rows"


def test_a_copy_that_was_cut_here_is_fetched_again(url, tmp_path):
    store = SharedStore(tmp_path, url)
    made(store).file("rows.jsonl").write_text("other rows")
    assert fetched(store) == "rows"


class Knobs(Settings):
    text: str = "rows"


@stage(version=1)
def collect(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows.jsonl").write_text(settings.text)
    return {}


@stage(version=1)
def report(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "page").write_text(rows.file("rows.jsonl").read_text())
    return {}


def test_the_same_command_goes_on_after_it_met_a_damaged_input(url, tmp_path):
    with active(Run(store=SharedStore(tmp_path / "a", url))):
        collect(settings=Knobs())
    damage_there(SharedStore(tmp_path / "a", url), b"sowr")

    def run() -> str:
        with active(Run(store=SharedStore(tmp_path / "b", url))):
            return report(collect(settings=Knobs()), settings=Knobs()).file("page").read_text()

    with pytest.raises(ObjectDamaged, match=r"the next run that makes it computes it again$"):
        run()
    assert run() == "rows"
    assert problems(SharedStore(tmp_path / "c", url)) == []


def test_what_others_published_is_listed_and_may_be_the_latest_input(
    url, tmp_path, monkeypatch, capsys
):
    one, two = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    made(two, key="b" * 16, created="2026-01-01T00:00:00+00:00")
    newest = made(one, key="a" * 16, created="2026-01-02T00:00:00+00:00")
    assert [m.key[0] for m in results(two, "collect")] == ["b", "a"]
    assert results(two, "dedup") == []
    for which in ("latest", "aaaaaa"):
        assert chosen_inputs({"collect": which}, two)["collect"].digest == newest.digest
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KLEAR_STORE", url)
    assert main(["store", "ls"]) == 0
    assert f"collect/{newest.key}" in capsys.readouterr().out
    assert main(["lineage", f"collect/{newest.key}"]) == 0
    two.objects.remove("collect")
    assert [m.key[0] for m in results(two)] == ["b"]
