"""Files for Ray, Slurm, Kubernetes and containers: what tools check, and our own rules."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml
from processes import output_of
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
STAND_INS = {
    "bin/scontrol": "printf 'n0\\nn1\\n'",
    "bin/srun": 'echo "$RAY_AUTH_MODE $(stat -c %a "$RAY_AUTH_TOKEN_PATH") srun $*" >>started',
    ".venv/bin/klear": 'echo "$KLEAR_HOME $KLEAR_PREFECT_URL $KLEAR_RAY_ADDRESS: $*"; '
    'wc -c <"${RAY_AUTH_TOKEN_PATH:-/dev/null}" >token',
    # asked for a token it is Python, asked how many nodes have joined it knows
    ".venv/bin/python": f'case "$1" in -c) exec {sys.executable} "$@";; *) echo 2;; esac',
}


def program(name: str) -> str:
    """A linter of the lock."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    assert path, f"{name} is in the lock"
    return path


def test_kubernetes_and_ray_know_every_field_and_the_ray_is_the_one_of_the_lock() -> None:
    for document in MANIFESTS:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    validate_config(prepare_config(yaml.safe_load((FOLDER / "ray/cluster.yaml").read_text())))
    version = yaml.safe_load((FOLDER / "ray/kuberay.yaml").read_text())["spec"]["rayVersion"]
    for lock in ("cpu", "gpu"):
        assert f"ray=={version}" in (ROOT / f"requirements-{lock}.lock").read_text().splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_slurm_job_passes_its_linter_and_says_what_it_needs_before_it_takes_any(path, tmp_path):
    for command in (["bash", "-n", str(path)], [program("shellcheck"), str(path)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bare = {"PATH": "/usr/bin:/bin"}
    (tmp_path / "deployments").symlink_to(FOLDER)
    done = subprocess.run(["bash", path], env=bare, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "KLEAR_HOME: a folder that all nodes share" in done.stderr


@pytest.fixture
def allocation(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with two nodes of 96 CPUs."""
    for name, script in STAND_INS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "KLEAR_HOME": str(tmp_path / "home"),
        "KLEAR_PREFECT_URL": "http://a:1", "KLEAR_MLFLOW_URL": "http://a:2",
        "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "96",
    }  # fmt: skip


@pytest.mark.parametrize("script", ["klear", "cpu"])
def test_a_slurm_job_runs_klear_with_its_words(tmp_path, allocation, script):
    (tmp_path / "deployments").symlink_to(FOLDER)
    words = (FOLDER / f"slurm/{script}.sbatch", "paper", "--set", "topology.nodes=4")
    output = output_of("bash", *words, env=allocation, cwd=tmp_path)
    assert output == f"{tmp_path}/home http://a:1 : run paper --set topology.nodes=4\n"


def test_ray_gets_every_cpu_of_its_nodes_and_asks_for_a_token(tmp_path, allocation):
    output = output_of("bash", FOLDER / "slurm/ray.sbatch", "paper", env=allocation, cwd=tmp_path)
    assert output == f"{tmp_path}/home http://a:1 n0:6379: run paper\n"
    steps = (tmp_path / "started").read_text().splitlines()
    assert len(steps) == 2
    for step, node in zip(sorted(steps, key=lambda s: "n1" in s), ("n0", "n1"), strict=True):
        assert step.startswith("token 600 srun ")
        # without it Slurm binds a step to one CPU, whatever the job asked for
        assert "--cpus-per-task=96 " in step
        assert f"--nodelist={node} " in step
        assert "--num-cpus=96 " in step
    assert (tmp_path / "token").read_text().strip() == "64"
    assert not list((tmp_path / "home").iterdir())  # the token ends with its cluster


IMAGES = sorted((ROOT / "deployments/docker").glob("*.Dockerfile"))
FILE = ROOT / "deployments/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.stem)
def test_an_image_passes_its_linter_and_installs_its_lock_and_the_sandbox(path: Path) -> None:
    done = subprocess.run([program("hadolint"), str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    text, lock = path.read_text(), f"requirements-{path.stem}.lock"
    assert re.findall(r"^COPY (\S+) \./$", text, re.MULTILINE) == [lock]
    assert (ROOT / lock).is_file()
    packages = re.search(r"^SYSTEM_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert packages
    for name in ("bubblewrap", "firejail", "libseccomp2"):
        assert name in packages[1].split()
        assert name in text


def test_the_specification_of_compose_allows_the_file_and_every_port_is_on_loopback() -> None:
    document = {n: v for n, v in COMPOSE.items() if not n.startswith("x-")}
    compose = compose_spec.PyCompose.from_json(json.dumps(document))
    compose.validate()
    assert sorted(compose.service_names()) == sorted(SERVICES)
    published = [p for s in SERVICES.values() for p in s.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_no_container_is_root_or_is_told_a_password_but_by_a_file() -> None:
    pods = [d["spec"]["template"]["spec"] for d in MANIFESTS if "template" in d.get("spec", {})]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            for variable in container.get("env", []):
                assert "PASSWORD" not in variable["name"]
                assert not re.search(r"//[^/@]*:[^/@]*@", variable.get("value", ""))
    assert all(secret["file"].startswith("secrets/") for secret in COMPOSE["secrets"].values())
    for name in (".gitignore", ".dockerignore"):
        assert "deployments/secrets" in (ROOT / name).read_text()
    variables = [pair for s in SERVICES.values() for pair in s["environment"].items()]
    assert all("PASSWORD" not in name or name.endswith("_FILE") for name, _ in variables)


def test_the_forge_runs_what_ci_runs_and_the_hooks_what_make_check_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["all"]["steps"][-1]["run"] == ".ci/run"
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe
    checks = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in repo["hooks"]] == checks
