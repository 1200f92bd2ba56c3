"""What belongs to this machine and not to a run: folders and ports, from `KLEAR_*` variables.

Nothing here is part of a stage's key. Import neither prefect nor mlflow before
`Machine.environment()` is in `os.environ`: both read their settings when they are imported.
"""

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from configs.explain import ConfigError, explain

PREFIX = "KLEAR_"
Port = Annotated[int, Field(ge=1, le=65_535)]


def find_home(start: Path) -> Path:
    """`.klear` of the nearest folder from `start` upwards that has one, else `start/.klear`."""
    for folder in (start, *start.parents):
        if (folder / ".klear").is_dir():
            return folder / ".klear"
    return start / ".klear"


def _store_in_home(known: dict[str, Any]) -> Path:
    return known["home"] / "store"


class Machine(BaseSettings):
    """Folders, ports and limits of this machine; each field is a `KLEAR_<FIELD>` variable."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    home: Annotated[Path, Field(description="Databases, logs and results")] = Field(
        default_factory=lambda: find_home(Path.cwd())
    )
    store: Annotated[Path, Field(description="Results of the stages")] = Field(
        default_factory=_store_in_home
    )
    host: Annotated[str, Field(description="Loopback address the servers listen on")] = "127.0.0.1"
    prefect_port: Port = 4271
    mlflow_port: Port = 5271
    worker_limit: Annotated[int, Field(ge=1, description="Runs from the web form at once")] = 1

    @field_validator("home", "store", mode="after")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if "://" in str(path) or ":/" in str(path):
            raise ValueError(f"{path} is no local folder")
        return path.expanduser().absolute()

    @field_validator("host", mode="after")
    @classmethod
    def _loopback_only(cls, host: str) -> str:
        """The servers know no passwords: whoever reaches them can run code here."""
        try:
            local = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = False
        if not local:
            raise ValueError(
                f"{host!r} would open servers without passwords to the network; "
                "use 127.0.0.1 and reach it through an ssh tunnel"
            )
        return host

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.prefect_port == self.mlflow_port:
            raise ValueError(
                f"KLEAR_PREFECT_PORT and KLEAR_MLFLOW_PORT are both {self.prefect_port}; "
                "two servers need two ports"
            )
        return self

    @property
    def prefect_url(self) -> str:
        return f"http://{self._netloc}:{self.prefect_port}"

    @property
    def prefect_api_url(self) -> str:
        return f"{self.prefect_url}/api"

    @property
    def mlflow_uri(self) -> str:
        """The tracking server; children of a run log to it over HTTP."""
        return f"http://{self._netloc}:{self.mlflow_port}"

    @property
    def mlflow_database(self) -> str:
        """The same tracking data without a server: absolute, whatever the current folder is."""
        return f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"

    @property
    def mlflow_artifacts(self) -> Path:
        return self.home / "mlflow" / "artifacts"

    @property
    def prefect_home(self) -> Path:
        return self.home / "prefect"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def state_file(self) -> Path:
        """What `klear up` started (see flows.servers)."""
        return self.home / "servers.json"

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def environment(self) -> dict[str, str]:
        """Variables for Prefect, MLflow and every child process; set them before importing either.

        PREFECT_HOME alone is not enough: result storage and the memo store stay in the user's
        home folder, and leases stay in memory (a server restart would lose a held slot).
        """
        prefect = self.prefect_home
        no_proxy = {h for h in os.environ.get("NO_PROXY", "").split(",") if h}
        no_proxy |= {"127.0.0.1", "localhost", self.host}
        return {
            "KLEAR_HOME": str(self.home),
            "KLEAR_STORE": str(self.store),
            "KLEAR_HOST": self.host,
            "KLEAR_PREFECT_PORT": str(self.prefect_port),
            "KLEAR_MLFLOW_PORT": str(self.mlflow_port),
            "KLEAR_WORKER_LIMIT": str(self.worker_limit),
            "PREFECT_HOME": str(prefect),
            "PREFECT_PROFILES_PATH": str(prefect / "profiles.toml"),
            "PREFECT_API_URL": self.prefect_api_url,
            "PREFECT_UI_API_URL": self.prefect_api_url,
            "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(prefect / "storage"),
            "PREFECT_SERVER_MEMO_STORE_PATH": str(prefect / "memo_store.toml"),
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
                "prefect.server.concurrency.lease_storage.filesystem"
            ),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "DO_NOT_TRACK": "1",
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
            "NO_PROXY": ",".join(sorted(no_proxy)),
            "no_proxy": ",".join(sorted(no_proxy)),
        }


def load_machine() -> Machine:
    """The machine as `KLEAR_*` describes it; ConfigError has one line per wrong variable."""
    try:
        return Machine()
    except ValidationError as error:
        raise ConfigError(_as_variable(problem) for problem in explain(error, Machine)) from error


def _as_variable(problem: str) -> str:
    path, colon, rest = problem.partition(": ")
    return f"{PREFIX}{path.upper()}: {rest}" if colon and path in Machine.model_fields else problem
