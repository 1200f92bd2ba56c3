"""compose.yaml is what the compose specification allows, and keeps to our own rules."""

import json
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from flows.servers.commands import SERVED

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deployments/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
OURS = [name for name in COMPOSE["services"] if name != "postgres"]


def parsed(document: dict[str, Any]) -> compose_spec.PyCompose:
    """Raises ValueError about anything that compose does not know."""
    rest = {n: v for n, v in document.items() if not n.startswith("x-")}
    return compose_spec.PyCompose.from_json(json.dumps(rest))


def test_the_specification_allows_it() -> None:
    found = parsed(COMPOSE)
    found.validate()
    assert sorted(found.service_names()) == sorted([*OURS, "postgres"])


def test_every_port_is_published_on_loopback_only() -> None:
    published = [p for s in COMPOSE["services"].values() for p in s.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_passwords_come_from_files_that_no_commit_and_no_image_holds() -> None:
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    assert set(files) == {"klear_password", "klear_database_password"}
    assert all(path.startswith("secrets/") for path in files.values())
    for name in (".gitignore", ".dockerignore"):
        assert "deployments/secrets" in (ROOT / name).read_text().replace("secrets/", "secrets")
    for service in COMPOSE["services"].values():
        for name, value in service["environment"].items():
            assert "PASSWORD" not in name or name.endswith("_FILE")
            assert "@" not in value or value.count(":") == 1, "a password in an address"


def test_only_the_servers_may_reach_the_database() -> None:
    holders = {
        name for name, s in COMPOSE["services"].items() if "klear_database_password" in s["secrets"]
    }
    assert holders == {"postgres", "prefect", "mlflow"}


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_one_of_klear_serve_and_starts_again(name: str) -> None:
    service = COMPOSE["services"][name]
    serve, what = service["command"]
    assert serve == "serve"
    assert what in SERVED
    assert service["restart"] == "unless-stopped"
    assert "user" not in service, "the image has its own, which is not root"
    assert service["init"] is True
    assert (FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", OURS)
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    for other, how in COMPOSE["services"][name]["depends_on"].items():
        assert how == {"condition": "service_healthy"}
        assert "healthcheck" in COMPOSE["services"][other]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_results_outlive_a_container(name: str) -> None:
    volumes = COMPOSE["services"][name]["volumes"]
    assert all(volume.split(":")[0] in COMPOSE["volumes"] for volume in volumes)


def test_only_workers_may_make_namespaces() -> None:
    loosened = {name for name, s in COMPOSE["services"].items() if "security_opt" in s}
    assert loosened == {"worker", "worker-gpu"}
    assert all(COMPOSE["services"][name]["cap_drop"] == ["ALL"] for name in loosened)
