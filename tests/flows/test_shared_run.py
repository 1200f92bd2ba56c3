"""The whole chain with its results on an S3 server, on machines that share nothing else."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from home import EVERY_STAGE, SMALL
from moto.s3.models import S3Backend

from klear.tasks.store.shared import SharedStore
from klear.tasks.store.store import MANIFEST
from tests.s3_server import s3_server, signed_on

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
BESIDE = "evaluate_base"  # runs beside SFT: done by then or not
CHAIN = """
import json, sys
from pathlib import Path
from klear.configs.loading import load_profile
from klear.configs.machine import load_machine
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.observe.terminal import LogDisplay
from klear.tasks.store.shared import open_store

class Told(LogDisplay):
    what = {}
    def finished(self, stage, outcome, *rest):
        self.what[stage] = outcome

store = open_store(load_machine())
with active(Run(store=store, observers=(Told(),))):
    page = compute(load_profile(sys.argv[1]))["report"]
    store.fetch(page)
print(json.dumps([Told.what, page.digest, len(page.file("report.html").read_text())]))
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


def started(home: Path, profile: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHAIN, str(profile)],
        cwd=ROOT, env={**os.environ, "KLEAR_HOME": str(home)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_on(home: Path, profile: Path) -> tuple[dict[str, str], str, int]:
    """Stage by stage what happened; the report's digest; the characters of its page."""
    run = started(home, profile)
    output, errors = run.communicate()
    assert run.returncode == 0, errors
    return tuple(json.loads(output.splitlines()[-1]))


def killed_while_uploading(stage: str, home: Path, profile: Path) -> None:
    stuck = Stuck(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Backend, "put_object", lambda *a, **k: stuck(*a, **k))
        run = started(home, profile)
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
    everything = list(EVERY_STAGE)
    killed_while_uploading("sft", tmp_path / "first", profile)
    shared = SharedStore(tmp_path / "second" / "store", bucket)
    assert not [name for name in shared.objects.sizes("sft") if name.endswith(MANIFEST)]
    damage = {name.split("/")[0]: wrong for name, wrong in shared.shared_damage()}
    damage.pop(BESIDE, None)
    assert damage == dict.fromkeys(everything[: everything.index("sft")], "")
    outcomes, digest, characters = run_on(tmp_path / "first", profile)
    before = everything[: everything.index("sft") + 1]  # trained, if not shared
    expected = dict.fromkeys(everything, "computed") | dict.fromkeys(before, "cached")
    assert outcomes == expected | {BESIDE: outcomes[BESIDE]}
    reused, same_digest, same_characters = run_on(tmp_path / "second", profile)
    assert reused == dict.fromkeys(everything, "cached")
    assert (same_digest, same_characters) == (digest, characters)
    copies = tmp_path / "second" / "store"
    assert [p.parent.parent.name for p in copies.glob("*/*/manifest.json")] == ["report"]
    assert {wrong for _, wrong in shared.shared_damage()} == {""}
    for name in shared.objects.sizes("report"):
        shared.objects.remove(name)
    again, _, _ = run_on(tmp_path / "third", profile)
    assert again == dict.fromkeys(everything, "cached") | {"report": "computed"}
