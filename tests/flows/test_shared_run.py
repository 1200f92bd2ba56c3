"""A run with its results on an S3 server, on machines that share nothing else."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from home import SMALL
from moto.s3.models import S3Backend

from klear.configs.loading import load_profile
from klear.configs.machine import load_machine
from klear.flows.dag import build_dag, upstream_of
from klear.flows.run import compute
from klear.tasks.engine.events import Event, Published
from klear.tasks.engine.run import Run, active
from klear.tasks.store.shared import SharedStore, open_store
from klear.tasks.store.store import MANIFEST
from tests.s3_server import s3_server, signed_on

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
LAST = "evaluate_sft"
CHAIN = """
import sys
from klear.configs.loading import load_profile
from klear.configs.machine import load_machine
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.store.shared import open_store

with active(Run(store=open_store(load_machine()))):
    compute(load_profile(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as address:
        signed_on(monkeypatch, address)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("klear")
        monkeypatch.setenv("KLEAR_STORE", "s3://klear/results")
        yield "s3://klear/results"


class Stuck:
    """An S3 server that takes one file of a stage's result and holds the next ones for ever."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.holds, self.released = threading.Event(), threading.Event()
        self.taken: list[str] = []
        self._put, self._lock = S3Backend.put_object, threading.Lock()

    def __call__(self, backend: Any, bucket: str, name: str, *rest: Any, **more: Any) -> Any:
        if f"/{self.stage}/" in name and not self.released.is_set() and not self._first(name):
            self.holds.set()
            self.released.wait()
            raise ConnectionResetError("whoever sent this is dead")
        return self._put(backend, bucket, name, *rest, **more)

    def _first(self, name: str) -> bool:
        with self._lock:
            self.taken += [] if self.taken else [name]
            return name in self.taken


class Actions:
    """Stage by stage what happened."""

    def __init__(self) -> None:
        self.by_stage: dict[str, str] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, Published):
            self.by_stage[event.task.stage] = event.action


def run_on(home: Path, profile: Path) -> tuple[dict[str, str], str]:
    """What happened in a run on this machine, and the digest of its last result, fetched here."""
    actions = Actions()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KLEAR_HOME", str(home))
        store = open_store(load_machine())
        with active(Run(store=store, observers=(actions,))):
            result = compute(load_profile(str(profile)), LAST)[LAST]
            store.fetch(result)
    assert result.file("scores.parquet").exists()
    return actions.by_stage, result.digest


def killed_while_uploading(stage: str, home: Path, profile: Path) -> None:
    stuck = Stuck(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Backend, "put_object", lambda *a, **k: stuck(*a, **k))
        run = subprocess.Popen(
            [sys.executable, "-c", CHAIN, str(profile), LAST],
            cwd=ROOT, env={**os.environ, "KLEAR_HOME": str(home)}, text=True,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        while not stuck.holds.wait(0.5):
            assert run.poll() is None, run.communicate()[1]
        run.kill()
        run.communicate()
        stuck.released.set()


def test_a_run_that_is_killed_in_an_upload_goes_on_and_a_second_machine_reuses_it_all(
    bucket, tmp_path
):
    profile = tmp_path / "micro.yaml"
    profile.write_text(SMALL)
    calls = upstream_of(LAST, build_dag(load_profile(str(profile))))
    everything = [call.stage.name for call in calls]
    killed_while_uploading("sft", tmp_path / "first", profile)
    shared = SharedStore(tmp_path / "second" / "store", bucket)
    assert not [name for name in shared.objects.sizes("sft") if name.endswith(MANIFEST)]
    damage = {name.split("/")[0]: wrong for name, wrong in shared.shared_damage()}
    assert damage == dict.fromkeys(everything[: everything.index("sft")], "")
    actions, digest = run_on(tmp_path / "first", profile)
    assert actions == dict.fromkeys(everything, "reused") | {LAST: "computed"}
    assert run_on(tmp_path / "second", profile) == (dict.fromkeys(everything, "reused"), digest)
    copies = tmp_path / "second" / "store"
    assert [p.parent.parent.name for p in copies.glob("*/*/manifest.json")] == [LAST]
    assert {wrong for _, wrong in shared.shared_damage()} == {""}
    for name in shared.objects.sizes(LAST):
        shared.objects.remove(name)
    again = dict.fromkeys(everything, "reused") | {LAST: "computed"}
    assert run_on(tmp_path / "third", profile) == (again, digest)
