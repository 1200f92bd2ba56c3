"""`klear doctor`: what on this machine would make a run fail, found in seconds instead of hours."""

import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...configs.files import PACKAGE
from ...configs.machine import Machine, load_machine
from ...configs.settings.judging import JudgeRuntime, JudgeSettings
from .servers import alive, port_trouble, refusal, servers_here

MIN_FREE_GB = 5.0
SECONDS = {"store": 30.0, "ray": 75.0}
FIXES = {
    "store": "check KLEAR_STORE, AWS_ENDPOINT_URL_S3 and the keys (AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY), or unset KLEAR_STORE to keep results here",
    "ray": "start a node here (`ray start --address=HOST:PORT --num-cpus=0`; a cluster with a "
    "token: RAY_AUTH_MODE=token), or unset KLEAR_RAY_ADDRESS to work locally",
}
_PIN = re.compile(r"^([\w.-]+)(?:\[.*?\])?==([^\s;#\\]+)", re.MULTILINE)


def doctor() -> int:
    """What would make a run fail: versions, sandbox, ports, disk, GPU, store, cluster."""
    good = True
    for name, check in checks(load_machine()).items():
        try:
            mark, line = "✓", check()
        except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
            mark, line, good = "✗", str(error), False
        print(f"{mark} {name:10} {' '.join(line.split())}", flush=True)
    return 0 if good else 1


def checks(machine: Machine) -> dict[str, Callable[[], str]]:
    """What each says is well; it raises RuntimeError with the fix, or what it met, if not."""
    return {
        "versions": versions,
        "sandbox": sandbox,
        "prefect": partial(server, machine, "prefect"),
        "mlflow": partial(server, machine, "mlflow"),
        **({"store": partial(ask, "store", machine.shared)} if machine.shared else {}),
        **({"ray": partial(ask, "ray", machine.ray_address)} if machine.ray_address else {}),
        "disk": partial(disk, machine.store),
        "gpu": gpu,
    }


def lock_file() -> Path:
    """The lock this environment was installed from: its torch build tells which."""
    return PACKAGE / f"requirements-{'cpu' if '+cpu' in version('torch') else 'gpu'}.lock"


def versions() -> str:
    """Every `name==version` of the lock is what is installed; of the list for tests, what is."""
    lock, wrong, lists = lock_file(), list[str](), set[str]()
    for file in sorted(lock.parent.glob(f"{lock.stem}*.lock"), reverse=True):
        for name, pinned in _PIN.findall(file.read_text(encoding="utf-8")):
            installed = "missing" if file == lock else pinned
            with suppress(PackageNotFoundError):
                installed = version(name)
            if pinned not in (installed, installed.partition("+")[0]):
                wrong.append(f"{name} is {installed} (locked: {pinned})")
                lists.add(file.name)
    if wrong:
        fix = f"pip install --no-deps -r {' -r '.join(sorted(lists))}"
        raise RuntimeError(f"{'; '.join(wrong)}; fix: {fix}")
    return f"as in {lock.name}, Python {sys.version.split()[0]}"


def sandbox() -> str:
    """A program runs in the sandbox that the judge uses by default."""
    from ...eval.judge.judge import Judge

    settings = JudgeSettings(runtime=JudgeRuntime(workers=1))
    with Judge(settings) as judge:
        judge.check_sandbox()
    return settings.sandbox


def server(machine: Machine, name: str) -> str:
    """It lets us in, or its port is free."""
    to_start = name in servers_here(machine) and name not in alive(machine)
    if wrong := (port_trouble if to_start else refusal)(machine, name):
        raise RuntimeError(wrong)
    return "not running; its port is free" if to_start else "lets us in"


def disk(store: Path) -> str:
    parent = next(folder for folder in (store, *store.parents) if folder.exists())
    free = shutil.disk_usage(parent).free / 1e9
    line = f"{free:.0f} GB free at {parent}"
    if free < MIN_FREE_GB:
        raise RuntimeError(f"{line}; {MIN_FREE_GB:.0f} GB are needed")
    return line


def gpu() -> str:
    """No GPU is fine (the tiny profile needs none); one that torch cannot use is not."""
    if shutil.which("nvidia-smi") is None:
        return "none; the tiny profile runs without, the others need one"
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, timeout=30)
    names = "; ".join(smi.stdout.strip().splitlines())
    if smi.returncode or not names:
        raise RuntimeError(f"nvidia-smi says: {smi.stderr or names}")
    if lock_file().name == "requirements-cpu.lock":
        raise RuntimeError(f"{names}; torch is a CPU build: install requirements-gpu.lock")
    return names


def ask(what: str, address: str) -> str:
    """`address` can be used as `store` or `ray`. A process of its own tries it, and is ended when
    it takes too long: the libraries behind both try again for minutes."""
    code = f"import sys; from {__name__} import try_{what} as t; print(t(sys.argv[1]))"
    command = [sys.executable, "-P", "-c", code, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS[what])
        if done.returncode == 0:
            return f"{address}: {done.stdout}"
        error = done.stderr.strip().rpartition("\n")[2]  # the last line of a traceback
        reason = error.partition(": ")[2] or error
    except subprocess.TimeoutExpired:
        reason = f"no answer in {SECONDS[what]:g} s"
    raise RuntimeError(f"{address}: {reason}; {FIXES[what]}")


def try_store(url: str) -> str:
    """Write, read and remove a small object."""
    from ...tasks.store.shared import ObjectStore

    name, objects = f"klear-doctor/{uuid.uuid4().hex}", ObjectStore(url)
    objects.write(name, b"klear doctor: may be removed\n", new=True)
    objects.read(name)
    objects.remove(name)
    return "written, read, removed"


def try_ray(address: str) -> str:
    """Join it. Whether a node has this machine's code says the first part that it computes."""
    from ...eval.ray_cluster import join

    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:  # Ray itself asks for more than a minute
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    return f"{sum(node['Alive'] for node in join(address).nodes())} nodes"
