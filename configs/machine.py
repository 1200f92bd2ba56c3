"""What belongs to this machine and not to a run: folders, addresses, secrets, from `KLEAR_*`.

Nothing here is part of a stage's key. Import neither prefect nor mlflow before
`Machine.environment()` is in `os.environ`: both read their settings when they are imported.
"""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from configs.explain import ConfigError, explain
from configs.machine_environment import client_environment
from configs.machine_rules import (
    local_folder,
    local_url,
    long_enough,
    may_listen,
    server_address,
    store_address,
    web_hook,
)
from configs.postgres import Postgres, parse_postgres

PREFIX = "KLEAR_"
Port = Annotated[int, Field(ge=1, le=65_535)]


def find_home(start: Path) -> Path:
    """`.klear` of the nearest folder from `start` upwards that has one, else `start/.klear`."""
    for folder in (start, *start.parents):
        if (folder / ".klear").is_dir():
            return folder / ".klear"
    return start / ".klear"


_NOTHING_IS_UNSET = ("shared", "prefect_url", "mlflow_url")


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
    shared: Annotated[
        str, Field(description="Address where machines share results, as s3://bucket/folder")
    ] = ""
    user: Annotated[
        str, Field(pattern=r"^[\w.@-]+$", description="Who may use the servers, if they ask")
    ] = "klear"
    password: Annotated[
        SecretStr, Field(description="With one, both servers ask for user and password")
    ] = SecretStr("")
    host: Annotated[str, Field(description="Address the servers listen on")] = "127.0.0.1"
    ray_address: Annotated[
        str,
        Field(description="Ray cluster (HOST:PORT or auto) for data parts and the judge; or none"),
    ] = ""
    prefect_port: Port = 4271
    mlflow_port: Port = 5271
    prefect_url: Annotated[
        str, Field(description="Where Prefect is reached, if it runs elsewhere")
    ] = Field(default_factory=lambda known: local_url(known["host"], known["prefect_port"]))
    mlflow_url: Annotated[
        str, Field(description="Where MLflow is reached, if it runs elsewhere")
    ] = Field(default_factory=lambda known: local_url(known["host"], known["mlflow_port"]))
    database: Annotated[
        SecretStr, Field(description="Postgres for both servers, postgresql://USER@HOST; or SQLite")
    ] = SecretStr("")
    database_password: Annotated[
        SecretStr, Field(description="Its password, if PGPASSWORD and ~/.pgpass do not say")
    ] = SecretStr("")
    worker_limit: Annotated[int, Field(ge=1, description="Runs from the web form at once")] = 1
    gpu_slots: Annotated[
        int, Field(ge=0, description="Stages that use the GPUs at once; 0: no limit")
    ] = Field(default_factory=lambda: int(Path("/dev/nvidia0").exists()))
    form_profile: Annotated[str, Field(description="Whose values the stage forms begin with")] = (
        "tiny"
    )
    webhook: Annotated[
        SecretStr, Field(description="URL that is told of every failed run; empty: none")
    ] = SecretStr("")
    zombie_minutes: Annotated[
        float,
        Field(
            ge=1,
            description="A run without a sign of life for this long has crashed; "
            "a Prefect server that is away for longer makes a live run look like one",
        ),
    ] = 30.0

    @model_validator(mode="before")
    @classmethod
    def _an_address_is_shared(cls, known: Any) -> Any:
        """KLEAR_STORE may be an address: results go there, and `<home>/store` keeps a copy.

        A variable that is set to nothing is not set.
        """
        if not isinstance(known, dict):
            return known
        known = {n: v for n, v in known.items() if v != "" or n not in _NOTHING_IS_UNSET}
        if "://" not in str(known.get("store", "")):
            return known
        if known.setdefault("shared", known["store"]) != known["store"]:
            raise ValueError("KLEAR_STORE and KLEAR_SHARED name two addresses; one can be shared")
        return {n: v for n, v in known.items() if n != "store"}

    @field_validator("home", "store", mode="after")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return local_folder(path)

    @field_validator("shared", mode="after")
    @classmethod
    def _an_address(cls, url: str) -> str:
        return store_address(url)

    @field_validator("prefect_url", "mlflow_url", mode="after")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        return server_address(url)

    @field_validator("host", mode="after")
    @classmethod
    def _loopback_without_password(cls, host: str, info: ValidationInfo) -> str:
        if "password" in info.data:  # else it is wrong itself
            may_listen(host, info.data["password"].get_secret_value())
        return host

    @field_validator("password", "webhook", "database", mode="after")
    @classmethod
    def _usable(cls, secret: SecretStr, info: ValidationInfo) -> SecretStr:
        rules = {"password": long_enough, "webhook": web_hook, "database": parse_postgres}
        if secret.get_secret_value():
            rules[str(info.field_name)](secret.get_secret_value())
        return secret

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.prefect_port == self.mlflow_port:
            raise ValueError(
                f"KLEAR_PREFECT_PORT and KLEAR_MLFLOW_PORT are both {self.prefect_port}; "
                "two servers need two ports"
            )
        return self

    @property
    def prefect_is_here(self) -> bool:
        """Whether `klear up` starts it; else somebody else does, at `prefect_url`."""
        return "prefect_url" not in self.model_fields_set

    @property
    def mlflow_is_here(self) -> bool:
        return "mlflow_url" not in self.model_fields_set

    @property
    def prefect_api_url(self) -> str:
        return f"{self.prefect_url}/api"

    @property
    def mlflow_uri(self) -> str:
        """The tracking server; children of a run log to it over HTTP."""
        return self.mlflow_url

    @property
    def server_hosts(self) -> set[str]:
        """Host names of both servers."""
        return {urlsplit(url).hostname or "" for url in (self.prefect_url, self.mlflow_url)}

    @cached_property
    def postgres(self) -> Postgres | None:
        """Where the servers keep their data; None: in SQLite files below the home folder."""
        address = self.database.get_secret_value()
        if not address:
            return None
        found = parse_postgres(address)
        secret = self.database_password.get_secret_value()
        return found._replace(password=secret) if secret else found

    @property
    def mlflow_database(self) -> str:
        """MLflow's data, for its server: absolute, whatever the current folder is; no password."""
        if self.postgres:
            return self.postgres.url("psycopg2", self.postgres.database("mlflow"))
        return f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"

    @property
    def mlflow_auth(self) -> Path:
        """How MLflow checks passwords (see flows.server_commands)."""
        return self.home / "mlflow" / "auth.ini"

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

    def make_home(self) -> None:
        """Raises ConfigError where no folder can be made."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"{self.home} cannot be made ({error.strerror})"
            raise ConfigError([f"KLEAR_HOME: {why}; name a folder you may write to"]) from error

    def environment(self) -> dict[str, str]:
        """Variables for Prefect, MLflow and every child process; set them before importing either.

        They hold the password of the servers where there is one: never print them.
        """
        return client_environment(self)


def load_machine() -> Machine:
    """The machine as `KLEAR_*` describes it; ConfigError has one line per wrong variable.

    A secret may be a file called `klear_<field>` in the folder that KLEAR_SECRETS names; default:
    where systemd and containers put them.
    """
    if misspelt := list(_misspelt()):
        raise ConfigError(misspelt)
    try:
        return Machine(_secrets_dir=_secrets())  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        lines = (_as_variable(problem) for problem in explain(error, Machine))
        raise ConfigError(line for line in lines if _FOLLOWS not in line) from error


_FOLLOWS = "default factory"  # pydantic could not make a default because another value is wrong


def _misspelt() -> Iterator[str]:
    """Variables that are nearly ours. Others of the prefix may be somebody's: an API key, say, or
    what Kubernetes tells of a service."""
    ours = [f"{PREFIX}{name.upper()}" for name in (*Machine.model_fields, "secrets")]
    for name in sorted(set(os.environ) - set(ours)):
        if name.startswith(PREFIX) and (close := get_close_matches(name, ours, 1, 0.85)):
            yield f"{name}: there is no such variable; did you mean {close[0]}?"


def _secrets() -> Path | None:
    named = os.environ.get("KLEAR_SECRETS", "")
    if named and not _is_readable(named):
        raise ConfigError([f"KLEAR_SECRETS: {named} is no folder that you may read"])
    places = (named, os.environ.get("CREDENTIALS_DIRECTORY", ""), "/run/secrets")
    return next((Path(p) for p in places if p and _is_readable(p)), None)


def _is_readable(folder: str) -> bool:
    """Of some systems /run/secrets is there for root alone."""
    return os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)


def _as_variable(problem: str) -> str:
    path, colon, rest = problem.partition(": ")
    return f"{PREFIX}{path.upper()}: {rest}" if colon and path in Machine.model_fields else problem
