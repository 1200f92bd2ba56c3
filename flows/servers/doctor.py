"""`klear doctor`: what on this machine would make a run fail, found in seconds instead of hours.

    python -m flows.servers.doctor store s3://bucket/folder
    python -m flows.servers.doctor ray HOST:PORT

The object store and the Ray cluster are asked by a process of their own, which is ended when it
takes too long: the libraries behind both try again for minutes.
"""

import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from configs.machine import Machine
from configs.settings.judging import JudgeRuntime, JudgeSettings
from flows.servers.commands import ROOT, database_trouble
from flows.servers.prefect_api import refusal
from flows.servers.process import port_holder
from flows.servers.servers import alive, servers_here

_PIN = re.compile(r"^([\w.-]+)(?:\[.*?\])?==([^\s;#\\]+)", re.MULTILINE)
MIN_FREE_GB = 5.0
SECONDS = {"store": 30.0, "ray": 75.0}
CONNECT_S = 5.0
NODE_S = 45.0  # a node that never ran our code starts a process for it
FIXES = {
    "store": "check KLEAR_STORE, AWS_ENDPOINT_URL_S3 and the keys (AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY), or unset KLEAR_STORE to keep results here",
    "ray": "start a node here (`ray start --address=HOST:PORT --num-cpus=0`; a cluster with a "
    "token: RAY_AUTH_MODE=token), or unset KLEAR_RAY_ADDRESS to work locally",
}


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
    yield check_versions(lock_file(), version)
    yield check_sandbox()
    for name in ("prefect", "mlflow"):
        yield check_server(machine, name)
        if machine.postgres and name in servers_here(machine):
            yield check_database(machine, name)
    if machine.shared:
        yield ask("store", machine.shared)
    if machine.ray_address:
        yield ask("ray", machine.ray_address)
    yield check_disk(machine.store)
    yield check_gpu()


def lock_file() -> Path:
    """The lock this environment was installed from: its torch build tells which."""
    try:
        cpu = "+cpu" in version("torch")
    except PackageNotFoundError:
        cpu = shutil.which("nvidia-smi") is None
    return ROOT / f"requirements-{'cpu' if cpu else 'gpu'}.lock"


def check_versions(lock: Path, installed: Callable[[str], str]) -> Check:
    """Every `name==version` of the lock against what is installed."""
    wrong = []
    for name, pinned in _PIN.findall(lock.read_text(encoding="utf-8")):
        try:
            found = installed(name)
        except PackageNotFoundError:
            found = "missing"
        if pinned not in (found, found.partition("+")[0]):
            wrong.append(f"{name} is {found} (locked: {pinned})")
    if not wrong:
        python = ".".join(map(str, sys.version_info[:3]))
        return Check("versions", True, f"as in {lock.name}, Python {python}")
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    fix = f"pip install --no-deps -r {lock.name}"
    return Check("versions", False, f"{'; '.join(wrong[:5])}{more}; fix: {fix}")


def check_sandbox() -> Check:
    """Runs a program in the sandbox the judge uses by default."""
    from eval.judge.judge import Judge

    settings = JudgeSettings()
    try:
        with Judge(settings.model_copy(update={"runtime": JudgeRuntime(workers=1)})) as judge:
            judge.check_sandbox()
    except (RuntimeError, OSError) as error:
        return Check("sandbox", False, " ".join(str(error).split()))
    return Check("sandbox", True, settings.sandbox)


def check_server(machine: Machine, name: str) -> Check:
    """It lets us in, or its port is free."""
    url = {"prefect": machine.prefect_url, "mlflow": machine.mlflow_url}[name]
    running, port = alive(machine).get(name), servers_here(machine).get(name)
    if port is None or running:
        wrong = refusal(machine, name)
        return Check(name, not wrong, wrong or f"{url} lets us in")
    if holder := port_holder(machine.host, port):
        fix = f"set KLEAR_{name.upper()}_PORT to a free one"
        return Check(name, False, f"port {port} is in use by {holder}; {fix}")
    asks = f"password of {machine.user}" if machine.password.get_secret_value() else "no password"
    return Check(name, True, f"not running; port {port} of {machine.host} is free, {asks}")


def check_database(machine: Machine, server: str) -> Check:
    """The Postgres of a server that `klear up` starts here."""
    assert machine.postgres is not None
    name = machine.postgres.database(server)
    wrong = database_trouble(machine, server)
    if f'"{name}" does not exist' in wrong:
        return Check("database", True, f"{name} at {machine.postgres}; `klear up` makes it")
    return Check("database", not wrong, f"{name} at {machine.postgres} {wrong}".rstrip())


def check_disk(store: Path) -> Check:
    place = next(folder for folder in (store, *store.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    say = f"{free:.0f} GB free at {place}"
    enough = free >= MIN_FREE_GB
    return Check("disk", enough, say if enough else f"{say}; {MIN_FREE_GB:.0f} GB are needed")


def check_gpu() -> Check:
    """No GPU is fine (the tiny profile needs none); one that torch cannot use is not."""
    if shutil.which("nvidia-smi") is None:
        return Check("gpu", True, "none; the tiny profile runs without, the others need one")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return Check("gpu", False, "nvidia-smi does not answer; the driver needs attention")
    names = "; ".join(found.stdout.strip().splitlines())
    if found.returncode or not names:
        return Check("gpu", False, f"nvidia-smi says: {' '.join((found.stderr or names).split())}")
    if lock_file().name == "requirements-cpu.lock":
        return Check("gpu", False, f"{names}; torch is a CPU build: install requirements-gpu.lock")
    return Check("gpu", True, names)


def ask(what: str, address: str) -> Check:
    """Whether `address` can be used as `store` or `ray`."""
    command = [sys.executable, "-P", "-m", "flows.servers.doctor", what, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS[what])
    except subprocess.TimeoutExpired:
        wrong = f"{address} did not answer in {SECONDS[what]:g} s; {FIXES[what]}"
        return Check(what, False, wrong)
    if done.returncode:
        wrong = " ".join((done.stdout or done.stderr[-300:]).split())
        return Check(what, False, f"{address}: {wrong}")
    return Check(what, True, " ".join(done.stdout.split()))


def main(what: str, address: str) -> int:
    """In the process of `ask`: one line, the fix included; 0 if all is well."""
    try:
        print({"store": try_store, "ray": try_ray}[what](address))
    except Exception as error:
        why = getattr(error, "cause", None) or error  # Ray wraps it in the traceback of a node
        print(f"{why or type(why).__name__}; {FIXES[what]}")
        return 1
    return 0


def try_store(url: str) -> str:
    """Write, read and remove a small object."""
    from tasks.store.shared import ObjectStore

    name, content = f"klear-doctor/{uuid.uuid4().hex}", b"klear doctor: may be removed\n"
    objects = ObjectStore(url)
    objects.write(name, content, new=True)
    read = objects.read(name)
    objects.remove(name)
    if read != content:
        raise ValueError("what was written is not what is read there")
    return f"{url}: written, read, removed"


def try_ray(address: str) -> str:
    """Ask every node whether it runs this machine's code and packages."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from eval.ray_cluster import code_digest, join, same_code

    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:  # Ray itself asks for more than a minute
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    ray: Any = join(address)
    asked = ray.remote(num_cpus=0, max_retries=0)(same_code)
    places = [
        NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        for node in ray.nodes()
        if node["Alive"]
    ]
    answers = [asked.options(scheduling_strategy=p).remote(code_digest()) for p in places]
    for answer in answers:
        ray.get(answer, timeout=NODE_S)
    return f"{address}: {len(answers)} nodes with this code"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
