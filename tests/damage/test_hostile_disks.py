"""A store that is full, out of inodes, read-only, on a disk that is mounted read-only, or not ours
to read: a clear stop, nothing half published, and the same command goes on once the cause is gone.

The disks are made in a user namespace, so that neither root nor a mount of the machine is needed.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from klear.tasks.store.store import MANIFEST

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
WITHOUT_POWERS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
STAGES = ROOT / "tests" / "damage" / "three_stages.py"


def python(*before: str, script: Path, arguments: tuple[str, ...]) -> subprocess.CompletedProcess:
    path = os.pathsep.join((str(ROOT / ".package"), str(ROOT / "tests")))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*before, sys.executable, str(script), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def mounted(options: str, disk: Path) -> tuple[str, ...]:
    """The beginning of a command that sees a disk of its own at `disk`, if this machine can."""
    disk.mkdir(exist_ok=True)
    return in_a_namespace('mount -t tmpfs -o "$0" none "$1"', options, str(disk))


def mounted_read_only(folder: Path) -> tuple[str, ...]:
    """The beginning of a command for which `folder`, as it is, lies on a read-only mount.

    A user may not make a mount of the machine writable or read-only, only one of their own: so the
    folder is mounted onto itself first.
    """
    twice = 'mount --bind "$1" "$1" && mount -o "$0,bind" "$1"'
    return in_a_namespace(twice, "remount,ro", str(folder))


def in_a_namespace(mount: str, options: str, disk: str) -> tuple[str, ...]:
    """The beginning of a command that runs after `mount` in a namespace of its own, or a skip."""
    command = (*NAMESPACE, "sh", "-c", f'{mount} && shift && exec "$@"', options, disk)
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("needs a kernel that lets a user mount in a namespace of its own")
    return command


@pytest.mark.parametrize(
    ("what", "options"), [("blocks", "size=400k"), ("inodes", "size=4m,nr_inodes=120")]
)
def test_a_full_disk_never_leaves_a_published_stage_and_the_run_goes_on(
    made: Path, tmp_path: Path, what: str, options: str
) -> None:
    disk = tmp_path / "disk"
    begun = mounted(options, disk)
    done = python(*begun, script=STAGES.with_name("small_disk.py"), arguments=(str(disk), what))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    attempts = found["attempts"]
    assert attempts[0]["full"]
    assert not attempts[-1]["said"]
    assert not [a["wrong"] for a in attempts if a["wrong"]]
    assert all(a["full"] for a in attempts if a["said"])
    assert {a["published"] for a in attempts} > {0, 3}  # it failed in the middle too
    whole = {p.parent.parent.name: json.loads(p.read_text())["digest"]
             for p in (made / "store").glob(f"[!.]*/*/{MANIFEST}")}  # fmt: skip
    assert found["digests"] == whole


def powerless() -> tuple[str, ...]:
    """Makes root an ordinary user, who has to ask for permission."""
    if os.geteuid():
        return ()
    return WITHOUT_POWERS


def test_a_file_and_a_manifest_that_may_not_be_read_are_recomputed(store: Path) -> None:
    (weights,) = store.glob("sft/*/checkpoint/model.safetensors")
    (manifest,) = store.glob(f"report/*/{MANIFEST}")
    weights.chmod(0)
    manifest.chmod(0)
    done = python(*powerless(), script=STAGES, arguments=(str(store),))
    assert done.stdout.splitlines() == [
        "collect: cached ()",
        f"sft: computed (sft/{weights.parents[1].name}: checkpoint/model.safetensors cannot be "
        "read (Permission denied))",
        f"report: computed (report/{manifest.parent.name} has an unreadable manifest "
        "(Permission denied))",
    ], done.stderr[-2000:]


@pytest.mark.parametrize("how", ["permissions", "mount"])
def test_a_store_that_cannot_be_written_is_a_clear_stop_and_stays_as_it_is(
    store: Path, how: str
) -> None:
    (weights,) = store.glob("sft/*/checkpoint/model.safetensors")
    kept = weights.read_bytes()
    weights.unlink()
    before, folders = contents(store), [store, *(p for p in store.rglob("*") if p.is_dir())]
    begun, error = powerless(), errno.EACCES
    if how == "mount":  # where no permission is missing: root cannot write either
        begun, error, folders = mounted_read_only(store), errno.EROFS, []
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = python(*begun, script=STAGES, arguments=(str(store),))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert os.strerror(error) in line
    assert str(store) in line
    assert contents(store) == before
    again = python(script=STAGES, arguments=(str(store),))
    outcomes = [o.partition(" (")[0] for o in again.stdout.splitlines()]
    assert outcomes == ["collect: cached", "sft: computed", "report: cached"]
    assert weights.read_bytes() == kept


def contents(store: Path) -> dict[Path, bytes]:
    """Every file below the store; the locks of a run are none of its results."""
    return {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and ".locks" not in p.parts}
