"""A stage is computed once, resumed after a kill, redone when asked, and never half published."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.base import Runtime, Settings
from tasks.run import Run, StoppedEarly, active
from tasks.stage import Metrics, stage
from tasks.store import Artifact, Store


class How(Runtime):
    workers: int = 1


class Knobs(Settings):
    text: str = "hello"
    how: How = How()


CALLS: list[str] = []


@stage(version=1)
def write_text(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    CALLS.append(settings.text)
    before = "".join(i.file("text.txt").read_text() for i in inputs)
    (out / "text.txt").write_text(before + settings.text)
    (out / "logs").mkdir(exist_ok=True)
    (out / "logs" / "time.txt").write_text(str(time.time_ns()))
    return {"length": len(before + settings.text)}


@stage(version=1)
def draw(out: Path, *, settings: Knobs, seed: int) -> Metrics:
    (out / "seed.txt").write_text(str(seed))
    return {}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    CALLS.clear()
    return Run(store=Store(tmp_path))


def test_the_same_settings_and_inputs_are_computed_once(run: Run) -> None:
    with active(run):
        first, second = write_text(settings=Knobs()), write_text(settings=Knobs())
    assert CALLS == ["hello"]
    assert first == second
    assert first.metrics == {"length": 5.0}


def test_runtime_settings_do_not_change_the_key(run: Run) -> None:
    with active(run):
        write_text(settings=Knobs())
        write_text(settings=Knobs(how=How(workers=9)))
    assert len(CALLS) == 1


def test_a_changed_setting_recomputes_the_stage_and_what_follows(run: Run) -> None:
    tail = write_text.named("tail")
    with active(run):
        for text in ("hello", "bye"):
            tail(write_text(settings=Knobs(text=text)), settings=Knobs(text="!"))
    assert CALLS == ["hello", "!", "bye", "!"]


def test_equal_bytes_from_a_forced_stage_keep_its_descendants(run: Run, tmp_path: Path) -> None:
    tail = write_text.named("tail")
    with active(run):
        tail(write_text(settings=Knobs()), settings=Knobs(text="!"))
    with active(Run(store=Store(tmp_path), force=frozenset({"write_text"}))):
        tail(write_text(settings=Knobs()), settings=Knobs(text="!"))
    assert CALLS == ["hello", "!", "hello"]


def test_a_forced_stage_is_redone_once_in_a_run_however_often_it_is_retried(tmp_path: Path) -> None:
    CALLS.clear()
    with active(Run(store=Store(tmp_path))):
        write_text(settings=Knobs())
    forced = Run(store=Store(tmp_path), force=frozenset({"write_text"}))
    with active(forced):
        write_text(settings=Knobs())
        write_text(settings=Knobs())
    assert len(CALLS) == 2


def test_a_forced_stage_that_another_run_has_redone_meanwhile_is_not_redone(tmp_path: Path) -> None:
    CALLS.clear()
    with active(Run(store=Store(tmp_path))):
        write_text(settings=Knobs())
    both = [Run(store=Store(tmp_path), force=frozenset({"write_text"})) for _ in range(2)]
    for run in both:  # the second one waited for the first
        with active(run):
            write_text(settings=Knobs())
    assert len(CALLS) == 2
    with active(Run(store=Store(tmp_path), force=frozenset({"write_text"}))):
        write_text(settings=Knobs())
    assert len(CALLS) == 3


@pytest.mark.parametrize("damage", ["delete", "truncate", "manifest"])
def test_a_damaged_result_is_recomputed_and_the_reason_names_the_file(
    run: Run, damage: str
) -> None:
    with active(run):
        made = write_text(settings=Knobs())
        victim = made.folder / ("manifest.json" if damage == "manifest" else "text.txt")
        victim.unlink() if damage == "delete" else victim.write_text("x")
        found, why = run.store.find(made.stage, made.key)
        assert found is None
        assert ("manifest" if damage == "manifest" else "text.txt") in why
        again = write_text(settings=Knobs())
    assert len(CALLS) == 2
    assert again.digest == made.digest


def test_verify_notices_changed_bytes_of_the_same_size(run: Run) -> None:
    with active(run):
        made = write_text(settings=Knobs())
    made.file("text.txt").write_text("HELLO")
    assert run.store.find(made.stage, made.key)[0] is not None
    assert run.store.find(made.stage, made.key, verify=True)[0] is None


def test_logs_are_kept_but_do_not_change_the_digest(run: Run, tmp_path: Path) -> None:
    with active(run):
        first = write_text(settings=Knobs())
    with active(Run(store=Store(tmp_path / "other"))):
        second = write_text(settings=Knobs())
    log = "logs/time.txt"
    assert first.file(log).read_text() != second.file(log).read_text()
    assert first.digest == second.digest


def test_a_failed_stage_publishes_nothing_and_its_work_is_resumed(run: Run) -> None:
    @stage(version=1)
    def flaky(out: Path, *, settings: Knobs) -> Metrics:
        scratch = out / ".resume" / "half.txt"
        if not scratch.exists():
            scratch.parent.mkdir()
            scratch.write_text("half of it")
            raise RuntimeError("killed")
        (out / "whole.txt").write_text(scratch.read_text() + ", and the rest")
        return {}

    with active(run):
        with pytest.raises(RuntimeError, match="killed"):
            flaky(settings=Knobs())
        assert not list(run.store.root.glob("flaky/*"))
        made = flaky(settings=Knobs())
    assert made.file("whole.txt").read_text() == "half of it, and the rest"
    assert not (made.folder / ".resume").exists()


def test_the_seed_is_part_of_the_key_only_of_stages_that_draw(tmp_path: Path) -> None:
    CALLS.clear()
    for seed in (1, 2):
        with active(Run(store=Store(tmp_path), seed=seed)):
            assert draw(settings=Knobs()).file("seed.txt").read_text() == str(seed)
            write_text(settings=Knobs())
    assert len(CALLS) == 1


def test_a_forced_stage_that_fails_leaves_the_old_result(run: Run, tmp_path: Path) -> None:
    healthy = [True]

    @stage(version=1)
    def fragile(out: Path, *, settings: Knobs) -> Metrics:
        if not healthy[0]:
            raise RuntimeError("no disk")
        (out / "a.txt").write_text("a")
        return {}

    with active(run):
        made = fragile(settings=Knobs())
    healthy[0] = False
    forced = Run(store=Store(tmp_path), force=frozenset({"fragile"}))
    with active(forced), pytest.raises(RuntimeError, match="no disk"):
        fragile(settings=Knobs())
    assert made.file("a.txt").read_text() == "a"


def test_a_metric_that_is_no_number_does_not_spoil_the_manifest(run: Run) -> None:
    @stage(version=1)
    def odd(out: Path, *, settings: Knobs) -> Metrics:
        (out / "a.txt").write_text("a")
        return {"good": 1.0, "bad": float("nan"), "worse": float("inf")}

    with active(run):
        assert odd(settings=Knobs()).metrics == {"good": 1.0}
        assert odd(settings=Knobs()).metrics == {"good": 1.0}


def test_until_stops_after_the_named_stage(tmp_path: Path) -> None:
    with active(Run(store=Store(tmp_path), until="write_text")), pytest.raises(StoppedEarly):
        write_text(settings=Knobs())
    assert list(tmp_path.glob("write_text/*/manifest.json"))


def test_an_edited_file_outside_of_the_store_is_noticed(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"

    @stage(version=1, reads=lambda settings: [rows])
    def copy_rows(out: Path, *, settings: Knobs) -> Metrics:
        (out / "rows.jsonl").write_text(rows.read_text())
        return {}

    with active(run):
        rows.write_text("one")
        first = copy_rows(settings=Knobs())
        rows.write_text("two")
        second = copy_rows(settings=Knobs())
        rows.write_text("one")
        assert copy_rows(settings=Knobs()) == first
    assert second.file("rows.jsonl").read_text() == "two"


def test_the_manifest_says_what_made_the_result(run: Run) -> None:
    with active(run):
        first = write_text(settings=Knobs())
        second = write_text.named("tail")(first, settings=Knobs(text="!"))
    manifest = json.loads((second.folder / "manifest.json").read_text())
    assert manifest["settings"] == {"text": "!", "how": {"workers": 1}}
    assert manifest["inputs"] == [{"stage": "write_text", "key": first.key, "digest": first.digest}]
    assert set(manifest["files"]) == {"text.txt", "logs/time.txt"}


def test_a_stage_outside_of_a_run_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"use `with active"):
        write_text(settings=Knobs())


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tasks.store import Store\n"
        f"with Store(Path({str(tmp_path)!r})).lock('a'): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with Store(tmp_path).lock("a", wait=False) as free:
        assert not free
    holder.kill()
    holder.wait()
    with Store(tmp_path).lock("a", wait=False) as free:
        assert free


def test_a_remote_store_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(ValueError, match="KLEAR_STORE"):
        Store(Path("s3://bucket/x"))
