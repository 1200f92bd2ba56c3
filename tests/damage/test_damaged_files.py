"""The matrix of docs/reliability.md: every file of every published stage, damaged in every way, and
who notices. The stage that is damaged is recomputed, to equal bytes, and no other.

`klear store verify` names every damage, and `gc` loses nothing by it. Where the store
is full, out of inodes, read-only or not ours to read, nothing is half published, and the same
command goes on once the cause is gone; such disks are made in a user namespace, without root.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from damage.three_stages import run_all

from klear.flows.cli.main import main
from klear.tasks.store.lineage import ancestors, results
from klear.tasks.store.store import MANIFEST, Store

FILES = {
    "collect": ("kept.parquet", "rejected.parquet", "sources.json", "README.md"),
    "sft": ("checkpoint/model.safetensors", "checkpoint/config.json", "checkpoint/tokenizer.json",
            "logs/child.log"),
    "report": ("report.html", "report.md"),
}  # fmt: skip
Damage = Callable[[Path], object]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def holding(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def with_entries(**entries: object) -> Damage:
    """A manifest that says so in place of what it said."""
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | entries))


POISON = {"../../../escape": {"bytes": 1, "sha256": ""}}
UNREADABLE = "unreadable manifest (damaged, or a newer klear made it)"


def contents(store: Path) -> dict[str, bytes]:
    """Every published file that is content; manifests and pages carry times and durations."""
    files = (p for p in store.glob("[!.]*/**/*") if p.is_file() and p.name != MANIFEST)
    return {str(p.relative_to(store)): p.read_bytes() for p in files if p.name != "README.md"}


@contextmanager
def hurt(store: Path, stage: str, name: str, damage: Damage) -> Iterator[None]:
    """The file as it was again after the block."""
    (path,) = store.glob(f"{stage}/*/{name}")
    sound = path.read_bytes()
    damage(path)
    yield
    if path.is_dir():
        path.rmdir()
    path.write_bytes(sound)


def problems(store: Path, *, verify: bool = False) -> dict[str, str]:
    """What is wrong with a stage, as a cache hit finds it, or with `verify` its digests."""
    places = [p.relative_to(store).parts for p in store.glob("[!.]*/*")]
    checks = {stage: Store(store).find(stage, key, verify=verify)[1] for stage, key in places}
    return {stage: problem for stage, problem in checks.items() if problem}


def check_recomputed(
    store: Path, stage: str, name: str, damage: Damage, message: str, *, verify: bool = False
) -> None:
    """`stage` alone is computed again, for a reason that holds `message`, to the same bytes."""
    before = contents(store)
    (path,) = store.glob(f"{stage}/*/{name}")
    damage(path)
    lines = run_all(store, verify=verify)
    assert {s for s, outcome in lines.outcome.items() if outcome == "computed"} == {stage}
    assert message in lines.why[stage]
    assert contents(store) == before
    assert not problems(store, verify=True)


@pytest.fixture(scope="module")
def spare(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that every test of the matrix damages and that every run repairs."""
    copy = tmp_path_factory.mktemp("spare") / "copy"
    shutil.copytree(baseline, copy)
    return copy / "store"


def test_the_matrix_names_every_file_of_the_stages(baseline: Path) -> None:
    store = baseline / "store"
    places = [p.relative_to(store).parts for p in store.glob("[!.]*/**/*") if p.is_file()]
    files = {(stage, name) for stage, names in FILES.items() for name in (*names, MANIFEST)}
    assert {(stage, "/".join(rest)) for stage, _, *rest in places} == files


@pytest.mark.parametrize(
    ("stage", "last"), [("collect", truncate), ("sft", make_folder), ("report", Path.unlink)]
)
def test_a_file_of_another_size_is_noticed_at_a_cache_hit(spare, stage, last) -> None:
    for name, damage in product(FILES[stage], (truncate, holding(b""), Path.unlink, make_folder)):
        with hurt(spare, stage, name, damage):
            wrong = problems(spare)
            assert wrong == problems(spare, verify=True)
        assert (set(wrong), f": {name} " in wrong[stage]) == ({stage}, True)
    check_recomputed(spare, stage, FILES[stage][0], last, FILES[stage][0])


@pytest.mark.parametrize("stage", FILES)
def test_changed_bytes_are_noticed_by_verify_and_not_by_a_cache_hit(spare, stage) -> None:
    for name in FILES[stage]:
        with hurt(spare, stage, name, flip):
            assert not problems(spare)
            wrong = problems(spare, verify=True)
        assert (set(wrong), f"{name} was changed" in wrong[stage]) == ({stage}, True)
    name = FILES[stage][0]
    check_recomputed(spare, stage, name, flip, f"{name} was changed", verify=True)


NO_MANIFESTS: list[tuple[Damage, str]] = [
    (Path.unlink, "unreadable manifest (No such file or directory)"),
    (make_folder, "unreadable manifest (Is a directory)"),
    (with_entries(key="0" * 16), "has the manifest of "),
    (holding(b""), UNREADABLE),
    (holding(b"\x00" * 100), UNREADABLE),
    (truncate, UNREADABLE),
    (with_entries(format=2, shards=[]), UNREADABLE),
    (with_entries(format=float("inf")), UNREADABLE),
    (with_entries(files=POISON), UNREADABLE),
]


@pytest.mark.parametrize(("stage", "last"), zip(FILES, NO_MANIFESTS, strict=False))
def test_a_manifest_that_is_none_is_noticed_at_a_cache_hit(spare, stage, last) -> None:
    for damage, message in NO_MANIFESTS:
        with hurt(spare, stage, MANIFEST, damage):
            wrong = problems(spare)
        assert (set(wrong), message in wrong[stage]) == ({stage}, True)
    check_recomputed(spare, stage, MANIFEST, *last)


@pytest.fixture
def home(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KLEAR_HOME", str(store.parent))
    return store


def test_verify_names_a_damaged_result_and_gc_keeps_what_it_may_need(home: Path, capsys) -> None:
    """The report needs `sft`, and only the manifest of `sft` says that `sft` needs `collect`."""
    last = next(p for p in results(Store(home)) if p.stage == "report")
    assert [m.stage for m in ancestors(Store(home), last)] == ["collect", "sft"]
    (manifest,) = home.glob(f"sft/*/{MANIFEST}")
    manifest.write_text("{")
    assert main(["store", "verify"]) == 1
    output = capsys.readouterr().out
    assert f"damaged: sft/{manifest.parent.name} has " in output
    assert "3 results read, 1 damaged" in output
    assert main(["store", "gc", "--days", "0", "--yes"]) == 0
    assert f"sft/{manifest.parent.name} cannot be read: results are kept" in capsys.readouterr().out
    assert len(list(home.glob(f"[!.]*/*/{MANIFEST}"))) == 3
    assert run_all(home).outcome == {"collect": "cached", "sft": "computed", "report": "cached"}
    for manifest in home.glob(f"collect/*/{MANIFEST}"):
        manifest.write_text("{")
    assert [m.stage for m in ancestors(Store(home), last)] == ["sft"]


ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# Makes root an ordinary user, who has to ask for permission.
POWERLESS = () if os.geteuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
STAGES = ROOT / "tests" / "damage" / "three_stages.py"


def python(*before: str, script: Path, arguments: tuple[str, ...]) -> subprocess.CompletedProcess:
    path = os.pathsep.join((str(ROOT / ".package"), str(ROOT / "tests")))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*before, sys.executable, str(script), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def in_a_namespace(mount: str, options: str, disk: Path) -> tuple[str, ...]:
    """The beginning of a command that runs after `mount` in a namespace of its own, or a skip."""
    command = (*NAMESPACE, "sh", "-c", f'{mount} && shift && exec "$@"', options, str(disk))
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("needs a kernel that lets a user mount in a namespace of its own")
    return command


@pytest.mark.system
@pytest.mark.parametrize(
    ("what", "options"), [("blocks", "size=400k"), ("inodes", "size=4m,nr_inodes=120")]
)
def test_a_full_disk_never_leaves_a_published_stage_and_the_run_goes_on(
    baseline: Path, tmp_path: Path, what: str, options: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    begun = in_a_namespace('mount -t tmpfs -o "$0" none "$1"', options, disk)
    done = python(*begun, script=STAGES.with_name("small_disk.py"), arguments=(str(disk), what))
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    attempts = outcome["attempts"]
    assert attempts[0]["full"]
    assert not attempts[-1]["said"]
    assert not [a["wrong"] for a in attempts if a["wrong"]]
    assert all(a["full"] for a in attempts if a["said"])
    assert {a["published"] for a in attempts} > {0, 3}  # it failed in the middle too
    complete = {p.parent.parent.name: json.loads(p.read_text())["digest"]
             for p in (baseline / "store").glob(f"[!.]*/*/{MANIFEST}")}  # fmt: skip
    assert outcome["digests"] == complete


@pytest.mark.system
def test_a_file_and_a_manifest_that_may_not_be_read_are_recomputed(store: Path) -> None:
    (weights,) = store.glob("sft/*/checkpoint/model.safetensors")
    (manifest,) = store.glob(f"report/*/{MANIFEST}")
    weights.chmod(0)
    manifest.chmod(0)
    done = python(*POWERLESS, script=STAGES, arguments=(str(store),))
    assert done.stdout.splitlines() == [
        "collect: cached ()",
        f"sft: computed (sft/{weights.parents[1].name}: checkpoint/model.safetensors cannot be "
        "read (Permission denied))",
        f"report: computed (report/{manifest.parent.name} has an unreadable manifest "
        "(Permission denied))",
    ], done.stderr[-2000:]


@pytest.mark.system
@pytest.mark.parametrize("obstacle", ["permissions", "mount"])
def test_a_store_that_cannot_be_written_is_a_clear_stop_and_stays_as_it_is(
    store: Path, obstacle: str
) -> None:
    (weights,) = store.glob("sft/*/checkpoint/model.safetensors")
    kept = weights.read_bytes()
    weights.unlink()
    before, folders = below(store), [store, *(p for p in store.rglob("*") if p.is_dir())]
    begun, error = POWERLESS, errno.EACCES
    if obstacle == "mount":  # where no permission is missing: root cannot write either
        # A user may make only a mount of their own read-only: the folder goes onto itself first.
        twice = 'mount --bind "$1" "$1" && mount -o "$0,bind" "$1"'
        begun, error, folders = in_a_namespace(twice, "remount,ro", store), errno.EROFS, []
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
    assert below(store) == before
    again = python(script=STAGES, arguments=(str(store),))
    outcomes = [o.partition(" (")[0] for o in again.stdout.splitlines()]
    assert outcomes == ["collect: cached", "sft: computed", "report: cached"]
    assert weights.read_bytes() == kept


def below(store: Path) -> dict[Path, bytes]:
    """Every file below the store; the locks of a run are none of its results."""
    return {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and ".locks" not in p.parts}
