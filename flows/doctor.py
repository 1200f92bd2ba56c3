"""`klear doctor`: what on this machine would make a run fail, found in seconds instead of hours."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from configs.judging import JudgeRuntime, JudgeSettings
from configs.machine import Machine
from flows.database import database_trouble
from flows.doctor_elsewhere import RAY_S, STORE_S, ask
from flows.prefect_api import refusal
from flows.registration import ROOT
from flows.server_process import port_holder, port_is_taken
from flows.servers import alive, servers_here

MIN_FREE_GB = 5.0
MIN_MEMORY_GB = 4.0
PYTHONS = ((3, 11), (3, 12))


class Check(NamedTuple):
    """One line of the doctor; `detail` says the fix when `ok` is false."""

    name: str
    ok: bool
    detail: str

    def __str__(self) -> str:
        return f"{'✓' if self.ok else '✗'} {self.name:10} {self.detail}"


def doctor(machine: Machine) -> int:
    """Print every check; 0 if all are good, else 1."""
    good = True
    for check in checks(machine):
        print(check, flush=True)
        good = good and check.ok
    return 0 if good else 1


def checks(machine: Machine) -> Iterator[Check]:
    yield check_python()
    yield check_versions(lock_file(), version)
    yield check_sandbox()
    yield from check_ports(machine)
    yield from check_servers_elsewhere(machine)
    yield check_access(machine)
    yield from check_database(machine)
    yield from check_elsewhere(machine)
    yield check_disk(machine.store)
    yield check_memory()
    yield check_gpu()


def check_python() -> Check:
    running = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    good = sys.version_info[:2] in PYTHONS
    return Check("python", good, running if good else f"{running}; use Python 3.11 or 3.12")


def lock_file() -> Path:
    """The lock this environment was installed from: its torch build tells which."""
    try:
        cpu = "+cpu" in version("torch")
    except PackageNotFoundError:
        cpu = shutil.which("nvidia-smi") is None
    return ROOT / f"requirements-{'cpu' if cpu else 'gpu'}.lock"


def check_versions(lock: Path, installed: Callable[[str], str]) -> Check:
    """Every pin of the lock against what is installed."""
    if not lock.exists():
        return Check("versions", False, f"no {lock.name} to compare with")
    wrong = []
    for name, pinned in pins(lock.read_text(encoding="utf-8")).items():
        try:
            found = installed(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is missing (locked: {pinned})")
            continue
        if found != pinned and found.partition("+")[0] != pinned:
            wrong.append(f"{name} is {found} (locked: {pinned})")
    if not wrong:
        return Check("versions", True, f"as in {lock.name}")
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    fix = f"pip install --no-deps -r {lock.name}"
    return Check("versions", False, f"{'; '.join(wrong[:5])}{more}; fix: {fix}")


def pins(lock: str) -> dict[str, str]:
    """`name==version` lines; comments, options, markers and hashes are left out."""
    found = {}
    for line in lock.splitlines():
        requirement = line.split("#")[0].split(";")[0].split("--hash")[0].strip(" \\")
        name, equals, pinned = requirement.partition("==")
        if equals and not name.startswith("-"):
            found[name.split("[")[0].strip()] = pinned.strip()
    return found


def check_sandbox() -> Check:
    """Runs a program in the sandbox the judge uses by default."""
    from eval.judge import Judge

    settings = JudgeSettings()
    try:
        with Judge(settings.model_copy(update={"runtime": JudgeRuntime(workers=1)})) as judge:
            judge.check_sandbox()
    except (RuntimeError, OSError) as error:
        return Check("sandbox", False, " ".join(str(error).split()))
    return Check("sandbox", True, settings.sandbox)


def check_ports(machine: Machine) -> Iterator[Check]:
    running = alive(machine)
    ports = {"prefect": machine.prefect_port, "mlflow": machine.mlflow_port}
    for name in servers_here(machine):
        port = ports[name]
        if name in running and running[name].port == port:
            yield Check(f"{name}", True, f"port {port}, running (pid {running[name].pid})")
        elif port_is_taken(machine.host, port):
            fix = f"set KLEAR_{name.upper()}_PORT to a free one"
            yield Check(f"{name}", False, f"port {port} is in use by {port_holder(port)}; {fix}")
        else:
            yield Check(f"{name}", True, f"port {port} is free")


def check_servers_elsewhere(machine: Machine) -> Iterator[Check]:
    """Those that KLEAR_PREFECT_URL and KLEAR_MLFLOW_URL name: they answer, and let us in."""
    urls = {"prefect": machine.prefect_url, "mlflow": machine.mlflow_url}
    for name in urls.keys() - set(servers_here(machine)):
        wrong = refusal(machine, name)
        yield Check(name, not wrong, wrong or f"{urls[name]} lets us in")


def check_access(machine: Machine) -> Check:
    """Nothing that listens beyond loopback gets here without a password: the settings refuse it."""
    if not machine.password.get_secret_value():
        return Check("access", True, f"{machine.host} only, no password")
    wrong = [refusal(machine, name) for name in servers_here(machine) if name in alive(machine)]
    said = "; ".join(filter(None, wrong))
    return Check("access", not said, said or f"{machine.host}, password of {machine.user}")


def check_database(machine: Machine) -> Iterator[Check]:
    """The Postgres of the servers that `klear up` starts here, if it is one."""
    if machine.postgres is None:
        return
    for name in servers_here(machine):
        wrong = database_trouble(machine, name)
        where = f"{machine.postgres.database(name)} at {machine.postgres}"
        new = f'"{machine.postgres.database(name)}" does not exist' in wrong
        later = f"{where}; `klear up` makes it"
        said = later if new else f"{where}: {wrong}" if wrong else where
        yield Check("database", new or not wrong, said)


def check_elsewhere(machine: Machine) -> Iterator[Check]:
    """The object store and the Ray cluster, where the settings name one."""
    if machine.shared:
        yield Check("store", *ask("store", machine.shared, STORE_S))
    if machine.ray_address:
        yield Check("ray", *ask("ray", machine.ray_address, RAY_S))


def check_disk(store: Path) -> Check:
    place = next(folder for folder in (store, *store.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    say = f"{free:.0f} GB free at {place}"
    enough = free >= MIN_FREE_GB
    return Check("disk", enough, say if enough else f"{say}; {MIN_FREE_GB:.0f} GB are needed")


def check_memory() -> Check:
    import psutil

    free = psutil.virtual_memory().available / 1e9
    enough = free >= MIN_MEMORY_GB
    say = f"{free:.1f} GB available, {psutil.cpu_count()} cores"
    return Check("memory", enough, say if enough else f"{say}; {MIN_MEMORY_GB:.0f} GB are needed")


def check_gpu() -> Check:
    """No GPU is fine (the tiny profile needs none); one that torch cannot use is not."""
    if shutil.which("nvidia-smi") is None:
        return Check("gpu", True, "none; the tiny profile runs without, the others need one")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return Check("gpu", False, "nvidia-smi does not answer; the driver needs attention")
    if found.returncode or not found.stdout.strip():
        said = " ".join((found.stderr or found.stdout).split()) or "nothing"
        return Check("gpu", False, f"nvidia-smi says: {said}")
    names = "; ".join(found.stdout.strip().splitlines())
    if lock_file().name == "requirements-cpu.lock":
        return Check(
            "gpu", False, f"{names}; but torch is a CPU build: install requirements-gpu.lock"
        )
    return Check("gpu", True, names)
