"""Whether the web forms are up to date, without importing Prefect to find out."""

import hashlib
import sys
from pathlib import Path

from configs.machine import Machine
from flows.prefect_api import ServerError, post

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "deployments" / "deploy.py"


def registration_command(wait_s: float) -> list[str]:
    """Registers the forms and what belongs to them; waits up to `wait_s` seconds for the server."""
    return [sys.executable, "-P", str(SCRIPT), "--wait", str(wait_s)]


def registration_is_current(machine: Machine) -> bool:
    """Whether this Prefect database holds deployments made from the present files."""
    stamp = _stamp(machine)
    if not stamp.exists() or stamp.read_text() != fingerprint(machine):
        return False
    if machine.prefect_is_here and not machine.postgres:
        return (machine.prefect_home / "prefect.db").exists()
    try:
        return post(machine, "deployments/count", {}, tries=1) > 0
    except ServerError:  # it is not up yet: a database that is not ours may be another one by now
        return False


def mark_registered(machine: Machine, seen: str) -> None:
    """Remember the `fingerprint` taken before the forms were made: a later edit makes it stale."""
    _stamp(machine).write_text(seen)


def _stamp(machine: Machine) -> Path:
    return machine.prefect_home / "registered.txt"


def _database(machine: Machine) -> str:
    return f"{machine.postgres}/{machine.postgres.name}" if machine.postgres else ""


def fingerprint(machine: Machine) -> str:
    """SHA-256 over what the forms are made of: profiles, settings, flows, and machine settings."""
    files = sorted(
        f for kind in ("yaml", "toml", "py") for f in (ROOT / "configs").rglob(f"*.{kind}")
    )
    files += [*sorted((ROOT / "flows").glob("*.py")), *sorted((ROOT / "tasks").glob("*.py"))]
    digest = hashlib.sha256(str(ROOT).encode())
    of_machine = (machine.form_profile, machine.gpu_slots, machine.zombie_minutes)
    of_machine += (machine.prefect_url, machine.mlflow_url, _database(machine))
    digest.update(repr((*of_machine, machine.webhook.get_secret_value())).encode())
    for path in (*files, SCRIPT):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()
