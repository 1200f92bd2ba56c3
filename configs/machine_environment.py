"""What Prefect and MLflow read from the environment: as clients everywhere, and as servers.

Passwords travel this way and no other: an environment is seen by its own user alone, a command
line by everybody.
"""

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from configs.machine import Machine

_PATIENT = {  # a server that is away for some minutes delays a run and does not fail it
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # what Prefect says while its Postgres is away
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # tasks.delivery says it again, as long as it takes
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_PRIVATE = ("10.*", "192.168.*", *(f"172.{i}.*" for i in range(16, 32)))
_WILDCARDS = ("0.0.0.0", "::")
NOT_FOR_WORKERS = ("KLEAR_DATABASE", "KLEAR_DATABASE_PASSWORD", "PGPASSWORD")


def client_environment(machine: "Machine") -> dict[str, str]:
    """For every process of klear, servers included; set it before importing Prefect or MLflow.

    PREFECT_HOME alone is not enough: result storage and the memo store stay in the user's
    home folder, and leases stay in memory (a server restart would lose a held slot).
    """
    prefect = machine.prefect_home
    no_proxy = {h for h in os.environ.get("NO_PROXY", "").split(",") if h}
    no_proxy |= {"127.0.0.1", "localhost", *machine.server_hosts}
    return {
        **_settings(machine),
        **_credentials(machine),
        "PREFECT_HOME": str(prefect),
        "PREFECT_PROFILES_PATH": str(prefect / "profiles.toml"),
        "PREFECT_API_URL": machine.prefect_api_url,
        "PREFECT_UI_API_URL": "/api",  # wherever a browser found the page: tunnels change ports
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(prefect / "storage"),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(prefect / "memo_store.toml"),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        **_PATIENT,
        "DO_NOT_TRACK": "1",
        "MLFLOW_TRACKING_URI": machine.mlflow_uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "NO_PROXY": ",".join(sorted(no_proxy)),
        "no_proxy": ",".join(sorted(no_proxy)),
    }


def _settings(machine: "Machine") -> dict[str, str]:
    """The machine itself, so that a child in another folder sees the same one."""
    found = {
        "KLEAR_HOME": str(machine.home),
        "KLEAR_STORE": str(machine.store),
        "KLEAR_SHARED": machine.shared,
        "KLEAR_HOST": machine.host,
        "KLEAR_RAY_ADDRESS": machine.ray_address,
        "KLEAR_PREFECT_PORT": str(machine.prefect_port),
        "KLEAR_MLFLOW_PORT": str(machine.mlflow_port),
        "KLEAR_PREFECT_URL": "" if machine.prefect_is_here else machine.prefect_url,
        "KLEAR_MLFLOW_URL": "" if machine.mlflow_is_here else machine.mlflow_url,
        "KLEAR_USER": machine.user,
        "KLEAR_WORKER_LIMIT": str(machine.worker_limit),
        "KLEAR_GPU_SLOTS": str(machine.gpu_slots),
        "KLEAR_FORM_PROFILE": machine.form_profile,
    }
    secret = machine.password.get_secret_value()
    return found | ({"KLEAR_PASSWORD": secret} if secret else {})


def _credentials(machine: "Machine") -> dict[str, str]:
    """What the clients of both servers say; nothing where the servers ask for nothing."""
    secret = machine.password.get_secret_value()
    if not secret:
        return {}
    return {
        "PREFECT_API_AUTH_STRING": f"{machine.user}:{secret}",
        "MLFLOW_TRACKING_USERNAME": machine.user,
        "MLFLOW_TRACKING_PASSWORD": secret,
    }


def server_environment(machine: "Machine", name: str) -> dict[str, str]:
    """For `prefect`, `mlflow` or `worker` as a process: a server also gets its database."""
    found = client_environment(machine)
    if name == "prefect":
        found |= _prefect_server(machine)
    elif name == "mlflow":
        found |= _mlflow_server(machine)
    return found | (_database_password(machine) if name in ("prefect", "mlflow") else {})


def _database_password(machine: "Machine") -> dict[str, str]:
    secret = machine.postgres.password if machine.postgres else ""
    return {"PGPASSWORD": secret} if secret else {}


def _prefect_server(machine: "Machine") -> dict[str, str]:
    secret = machine.password.get_secret_value()
    found = {"PREFECT_SERVER_API_AUTH_STRING": f"{machine.user}:{secret}"} if secret else {}
    if machine.postgres:
        url = machine.postgres.url("asyncpg", machine.postgres.database("prefect"))
        found["PREFECT_API_DATABASE_CONNECTION_URL"] = url
    return found


def _mlflow_server(machine: "Machine") -> dict[str, str]:
    found = {
        "MLFLOW_BACKEND_STORE_URI": machine.mlflow_database,
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(_allowed_hosts(machine)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(_origins(machine)),
    }
    # What somebody set by hand for names that we cannot know counts.
    found = {n: os.environ[n] if n in os.environ and "SERVER" in n else v for n, v in found.items()}
    secret = machine.password.get_secret_value()
    if secret:
        found |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(machine.mlflow_auth),
            "MLFLOW_AUTH_ADMIN_USERNAME": machine.user,
            "MLFLOW_AUTH_ADMIN_PASSWORD": secret,
        }
    return found


def _names(machine: "Machine") -> list[str]:
    """By which names this machine's MLflow is called."""
    exposed = machine.host in _WILDCARDS
    here = {socket.gethostname(), socket.getfqdn()} if exposed else {machine.host}
    return sorted({"localhost", "127.0.0.1", *machine.server_hosts, *here} - set(_WILDCARDS))


def _allowed_hosts(machine: "Machine") -> list[str]:
    """Host headers that MLflow answers to: others may be a page that rebinds its name to us."""
    names = [f"[{n}]" if ":" in n else n for n in _names(machine)]
    # A bracket would begin a set of characters in a pattern.
    ports = [f"{n.replace('[', '[[]', 1)}:*" for n in names]
    private = _PRIVATE if machine.host in _WILDCARDS else ()
    return [*names, *ports, *private]


def _origins(machine: "Machine") -> list[str]:
    names = [f"[{n}]" if ":" in n else n for n in _names(machine)]
    return [f"{scheme}://{n}:{machine.mlflow_port}" for n in names for scheme in ("http", "https")]
