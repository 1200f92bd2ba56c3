"""Whether the web form of every profile is up to date, without importing Prefect to find out."""

import hashlib
import sys
from pathlib import Path

from configs.machine import Machine

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "deployments" / "deploy.py"


def registration_command(wait_s: float) -> list[str]:
    """Registers one deployment per profile; waits up to `wait_s` seconds for the server."""
    return [sys.executable, "-P", str(SCRIPT), "--wait", str(wait_s)]


def registration_is_current(machine: Machine) -> bool:
    """Whether this Prefect database holds deployments made from the present files."""
    database, stamp = machine.prefect_home / "prefect.db", _stamp(machine)
    return database.exists() and stamp.exists() and stamp.read_text() == fingerprint()


def mark_registered(machine: Machine, seen: str) -> None:
    """Remember the `fingerprint` taken before the forms were made: a later edit makes it stale."""
    _stamp(machine).write_text(seen)


def _stamp(machine: Machine) -> Path:
    return machine.prefect_home / "registered.txt"


def fingerprint() -> str:
    """SHA-256 over what the form is made of: profiles, settings classes, the flow's signature."""
    files = [*sorted((ROOT / "configs").rglob("*.yaml")), *sorted((ROOT / "configs").glob("*.py"))]
    digest = hashlib.sha256(str(ROOT).encode())
    for path in (*files, ROOT / "flows" / "pipeline.py", SCRIPT):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()
