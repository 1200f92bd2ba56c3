"""The services of compose.yaml as processes: on a real Postgres, asking for a password.

Their commands and variables are the file's own; only names of containers become loopback addresses.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from home import KLEAR, PATIENCE_S, ROOT, SMALL, eventually
from postgres_cluster import PASSWORD as DATABASE_PASSWORD
from postgres_cluster import Cluster, running_cluster
from processes import below, free_ports, left

HOST = "127.0.0.2"  # not the address that clients use by default
PASSWORD = "open-sesame-for-tests"
AWAY_S = 10.0
CRASHES_IN = ("sft", "rl_math")  # while the stage trains
pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * PATIENCE_S)]


class Services:
    """`klear serve …` as containers would run it: environment from the file, secrets from files."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.file = yaml.safe_load((ROOT / "deployments/compose.yaml").read_text())
        self.ports: dict[str, int] = dict(zip(("prefect", "mlflow"), free_ports(2), strict=True))
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        (self.secrets / "klear_password").write_text(PASSWORD + "\n")
        (self.secrets / "klear_database_password").write_text(DATABASE_PASSWORD + "\n")
        self.begun: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, service: str) -> dict[str, str]:
        environment = {n: v for n, v in os.environ.items() if not n.startswith(("KLEAR_", "PG"))}
        environment |= {
            "KLEAR_HOME": str(self.folder / service),  # a volume each
            "KLEAR_SECRETS": str(self.secrets),
            "KLEAR_PREFECT_PORT": str(self.ports["prefect"]),
            "KLEAR_MLFLOW_PORT": str(self.ports["mlflow"]),
            "PYTHONPATH": str(ROOT / ".package"),
        }
        here = {
            "0.0.0.0": HOST,
            "http://prefect:4271": self.url("prefect"),
            "http://mlflow:5271": self.url("mlflow"),
        }
        variables: dict[str, str] = self.file["services"][service]["environment"]
        return environment | {
            n: here.get(v, v.replace("klear@postgres", self.cluster.place))
            for n, v in variables.items()
        }

    def url(self, server: str) -> str:
        return f"http://{HOST}:{self.ports[server]}"

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def start(self, service: str) -> None:
        with (self.folder / f"{service}.log").open("ab") as log:
            self.begun[service] = subprocess.Popen(
                [*KLEAR, *self.file["services"][service]["command"]],
                cwd=ROOT, env=self.environment(service),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def await_answer(self, service: str, path: str) -> None:
        def answers() -> bool:
            assert self.begun[service].poll() is None, self.log(service)
            return status(f"{self.url(service)}{path}") == 200

        assert eventually(answers), self.log(service)

    def klear(self, *words: str) -> "subprocess.Popen[str]":
        """The command line of somebody who was told the addresses and the password."""
        return subprocess.Popen(
            [*KLEAR, *words], cwd=ROOT, env=self.environment("worker"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def status(url: str, password: str = "", body: Any = None) -> int:
    """The HTTP status of GET, or of POST with a body; 0 where nobody answers."""
    headers = {"Content-Type": "application/json"}
    if password:
        headers["Authorization"] = f"Basic {b64encode(f'klear:{password}'.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with running_cluster() as cluster:
        for line in (ROOT / "deployments/docker/databases.sql").read_text().splitlines():
            cluster.rows("postgres", line)
        running = Services(tmp_path_factory.mktemp("compose"), cluster)
        try:
            running.start("prefect")
            running.start("mlflow")
            running.await_answer("prefect", "/api/health")
            running.await_answer("mlflow", "/health")
            yield running
        finally:
            for process in running.begun.values():
                rest = below(process.pid)
                process.terminate()
                process.wait(PATIENCE_S)
                for other in rest:
                    if other.is_running():
                        other.kill()


def test_both_servers_refuse_who_has_no_password(services: Services) -> None:
    prefect = f"{services.url('prefect')}/api/flow_runs/filter"
    mlflow = f"{services.url('mlflow')}/api/2.0/mlflow/experiments/search?max_results=1"
    for password, expected in (("", 401), ("not-the-password", 401), (PASSWORD, 200)):
        assert status(prefect, password, body={}) == expected
        assert status(mlflow, password) == expected


def logged_steps(services: Services, stage: str, metric: str) -> list[int]:
    """The steps at which the stage's own log has the metric."""
    (file,) = services.folder.glob(f"worker/store/{stage}/*/logs/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted({line["step"] for line in lines if metric in line["metrics"]})


def test_a_run_survives_a_database_that_crashes_while_it_trains(services: Services) -> None:
    profile = services.folder / "small.yaml"
    profile.write_text(SMALL)
    run = services.klear("run", str(profile), "--until", "evaluate_rl_math")
    for stage in CRASHES_IN:
        work = services.folder / f"worker/store/.work/{stage}"
        checkpoints = partial(work.glob, "*/.resume/checkpoints/*")
        assert eventually(lambda has=checkpoints: run.poll() is not None or any(has()))
        assert run.poll() is None, run.communicate()[0]
        services.cluster.stop("immediate")
        time.sleep(AWAY_S)
        services.cluster.start()
    output, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, output

    def rows(query: str) -> list[str]:
        return services.cluster.rows("klear_mlflow", query)

    once = "SELECT run_uuid FROM metrics WHERE key NOT LIKE 'system/%' GROUP BY run_uuid, key, step"
    assert rows(f"{once} HAVING count(*) > 1") == []
    for stage, metric in (("sft", "loss"), ("rl_math", "reward/mean")):
        its_run = f"SELECT run_uuid FROM tags WHERE key = 'klear.stage' AND value = '{stage}'"
        query = (
            f"SELECT step FROM metrics WHERE key = '{stage}/{metric}' AND run_uuid IN ({its_run})"
        )
        steps = logged_steps(services, stage, metric)
        assert steps
        assert [int(step) for step in rows(f"{query} ORDER BY step")] == steps
    scores = "SELECT count(*) FROM metrics WHERE key = 'countdown_test/avg'"
    assert int(rows(scores)[0]) > 0
    assert rows("SELECT DISTINCT status FROM runs") == ["FINISHED"]
    states = services.cluster.rows("klear_prefect", "SELECT state_type FROM flow_run")
    assert states == ["COMPLETED"]


def test_the_worker_registers_the_forms_and_signs_on(services: Services) -> None:
    services.start("worker")
    rows = services.cluster.rows
    signed_on = eventually(lambda: rows("klear_prefect", "SELECT name FROM worker"))
    assert signed_on, services.log("worker")
    assert int(rows("klear_prefect", "SELECT count(*) FROM deployment")[0]) > 0


def test_no_password_is_on_a_command_line_in_a_log_or_in_a_database(services: Services) -> None:
    places: dict[object, bytes] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended meanwhile
            places[process] = " ".join(process.cmdline()).encode()
    for path in map(Path, glob(f"{services.folder}/**", recursive=True, include_hidden=True)):
        if path.is_file() and services.secrets not in path.parents:
            with suppress(FileNotFoundError):  # of a server that lives
                places[path] = path.read_bytes()
    for database in ("klear_prefect", "klear_mlflow"):
        places[database] = services.cluster.dump(database).encode()
        assert b"CREATE TABLE" in places[database]
    for secret in (PASSWORD.encode(), DATABASE_PASSWORD.encode()):
        assert not [place for place, content in places.items() if secret in content]


@pytest.mark.parametrize("service", ["worker", "mlflow", "prefect"])
def test_one_signal_ends_a_service_and_all_that_it_started(services, service):
    if service not in services.begun or services.begun[service].poll() is not None:
        services.start(service)
    process = services.begun[service]
    assert eventually(lambda: below(process.pid))
    started = below(process.pid)
    assert started
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0, services.log(service)
    assert left(started) == []
