"""This machine: folders, addresses and passwords from `KLEAR_*`, and what Prefect and MLflow read
from the environment. A command line, unlike an environment, is seen by everybody: no passwords."""

import os
import re
import socket
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import AfterValidator, Field, PositiveInt, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .settings.engines import no_secret
from .settings.explain import ConfigError

PREFIX = "KLEAR_"
SHORTEST_PASSWORD = 12  # MLflow's rule
DATABASES = {"prefect": "PREFECT_API_DATABASE_CONNECTION_URL", "mlflow": "MLFLOW_BACKEND_STORE_URI"}
"""The servers' own variables for a database that is no file below the home folder."""
SECRETS = ("password", "database_password")
MLFLOW_AUTH = "mlflow/auth.ini"  # below the home folder: how MLflow checks passwords
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
FOLDER = Path(__file__).parent


def find_home(start: Path) -> Path:
    """`.klear` of the nearest folder from `start` upwards that has one, else `start/.klear`."""
    homes = (folder / ".klear" for folder in (start, *start.parents))
    return next((home for home in homes if home.is_dir()), start / ".klear")


def local_url(host: str, port: int) -> str:
    """How programs on this machine reach what listens on `host`."""
    name = _ANY_ADDRESS.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _local_folder(path: Path) -> Path:
    if ":/" in str(path):
        raise ValueError(f"{path} is no local folder")
    return path.expanduser().absolute()


def _store_address(url: str) -> str:
    """A store's address is written into messages, plans and the names of uploads."""
    if not all(url.partition("://")):  # it would be a folder that no other machine sees
        raise ValueError(f"{url} is no address; write s3://bucket/folder or the like")
    if "@" in url and urlsplit(url).password is not None:
        places = "a key file of ssh, AWS_SECRET_ACCESS_KEY, or ~/.config/fsspec/conf.json"
        fix = f"leave it out, and let the client find it: {places}"
        raise ValueError(f"the address holds a password; {fix}")
    return url


Folder = Annotated[Path, AfterValidator(_local_folder)]
Address = Annotated[
    str,
    no_secret("set KLEAR_USER and KLEAR_PASSWORD"),
    AfterValidator(lambda url: url.rstrip("/").removesuffix("/api")),
]
Port = Annotated[int, Field(ge=1, le=65_535)]
NOTHING = SecretStr("")


class Machine(BaseSettings):
    """Folders, ports and limits of this machine; each field is a `KLEAR_<FIELD>` variable."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        validate_default=False,
        frozen=True,
        extra="ignore",
    )

    home: Folder = Field(default_factory=lambda: find_home(Path.cwd()))
    """Databases, logs and results"""
    store: Folder = Field(default_factory=lambda values: values["home"] / "store")
    """Results of the stages"""
    shared: Annotated[str, AfterValidator(_store_address)] = ""
    """Address where machines share results, as s3://bucket/folder"""
    user: Annotated[str, Field(pattern=r"^[\w.@-]+$")] = "klear"
    """Who may use the servers, if they ask"""
    password: Annotated[SecretStr, Field(min_length=SHORTEST_PASSWORD)] = NOTHING
    """With one, both servers ask for user and password"""
    host: str = "127.0.0.1"
    """Address the servers listen on"""
    ray_address: str = ""
    """Ray cluster (HOST:PORT or auto) for data parts and the judge; or none"""
    prefect_port: Port = 4271
    mlflow_port: Port = 5271
    prefect_url: Address = Field(
        default_factory=lambda values: local_url(values["host"], values["prefect_port"])
    )
    """Where Prefect is reached, if it runs elsewhere"""
    mlflow_url: Address = Field(
        default_factory=lambda values: local_url(values["host"], values["mlflow_port"])
    )
    """Where MLflow is reached, if it runs elsewhere"""
    database_password: SecretStr = NOTHING
    """Of the servers' Postgres, if PGPASSWORD and ~/.pgpass do not say"""
    worker_limit: PositiveInt = 1
    """Runs from the web form at once"""
    gpu_slots: Annotated[int, Field(ge=0)] = Field(
        default_factory=lambda: int(Path("/dev/nvidia0").exists())
    )
    """Stages that use the GPUs at once; 0: no limit"""
    form_profile: Annotated[str, AfterValidator(lambda path: str(_local_folder(Path(path))))] = ""
    """A further profile with forms, beside the shipped ones: the path of a YAML file"""
    zombie_minutes: Annotated[float, Field(ge=1)] = 30.0
    """A run without a sign of life for so long has crashed; must outlast an outage of Prefect"""

    @model_validator(mode="before")
    @classmethod
    def _an_address_is_shared(cls, values: dict[str, Any]) -> dict[str, Any]:
        """KLEAR_STORE may be an address: results go there, and `<home>/store` keeps a copy."""
        if "://" in str(values.get("store", "")) and "shared" not in values:
            values = {("shared" if n == "store" else n): v for n, v in values.items()}
        return values

    @model_validator(mode="after")
    def _loopback_without_password(self) -> Self:
        """Whoever reaches the servers can run code here, so beyond loopback they must ask."""
        if not self.password and not re.fullmatch(r"localhost|::1|127(\.\d+){3}", self.host):
            own = f"set KLEAR_PASSWORD ({SHORTEST_PASSWORD} characters or more)"
            fix = f"{own}, or use 127.0.0.1 and an ssh tunnel"
            raise ValueError(f"{self.host!r} opens servers without passwords to the network; {fix}")
        return self

    @property
    def mlflow_page(self) -> str:
        """Its first page for people: experiments, not the mode for LLM applications."""
        return f"{self.mlflow_url}/#/experiments?workflowType=machine_learning"

    def is_here(self, server: str) -> bool:
        """Whether `klear up` starts `prefect` or `mlflow`; else somebody else does, at its URL."""
        return f"{server}_url" not in self.model_fields_set

    def environment(self) -> dict[str, str]:
        """Variables for Prefect, MLflow and child processes; set them before importing either.
        Where the servers have a password they hold it: never print them."""
        skipped = {*os.environ.get("NO_PROXY", "").split(","), "127.0.0.1", "localhost"}
        skipped |= {urlsplit(url).hostname or "" for url in (self.prefect_url, self.mlflow_url)}
        no_proxy = ",".join(sorted(filter(None, skipped)))
        secret = self.password.get_secret_value()
        forms = sha256(f"mlflow forms {secret}".encode()).hexdigest()
        plain = self.model_dump(mode="json", exclude=set(SECRETS))
        facts = {**plain, "password": secret, "forms": forms, "auth": self.home / MLFLOW_AUTH}
        read = dotenv_values(FOLDER / "clients.env", interpolate=False)
        read |= dotenv_values(FOLDER / "passwords.env", interpolate=False) if secret else {}
        return {
            **{f"{PREFIX}{name.upper()}": str(value) for name, value in plain.items()},
            "KLEAR_PREFECT_URL": "" if self.is_here("prefect") else self.prefect_url,
            "KLEAR_MLFLOW_URL": "" if self.is_here("mlflow") else self.mlflow_url,
            **{name: Template(text or "").substitute(facts) for name, text in read.items()},
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }


def load_machine() -> Machine:
    """The machine as `KLEAR_*` describes it; ConfigError has one line per wrong variable, also one
    that is nearly ours. A secret may be a file `klear_<field>` in the folder that KLEAR_SECRETS
    names, by default where systemd and containers put them."""
    ours = [f"{PREFIX}{name.upper()}" for name in (*Machine.model_fields, "secrets")]
    foreign = [n for n in sorted(os.environ) if n.startswith(PREFIX) and n not in ours]
    close = [(name, get_close_matches(name, ours, 1, 0.85)) for name in foreign]
    misspelt = [f"{n}: there is no such variable; did you mean {m[0]}?" for n, m in close if m]
    if misspelt:
        raise ConfigError(misspelt)
    named = os.environ.get("KLEAR_SECRETS", "")
    places = (named, os.environ.get("CREDENTIALS_DIRECTORY", ""), "/run/secrets")
    # Of some systems /run/secrets is there for root alone.
    secrets = next((p for p in places if os.access(p, os.R_OK | os.X_OK)), None)
    if named and named != secrets:
        raise ConfigError([f"KLEAR_SECRETS: {named} is no folder that you may read"])
    if "KLEAR_DATABASE" in os.environ or (secrets and Path(secrets, "klear_database").exists()):
        names = " and ".join(DATABASES.values())
        raise ConfigError([f"KLEAR_DATABASE: set {names} instead (deployments/README.md)"])
    try:
        return Machine(_secrets_dir=secrets)  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        # Not one that needs another value, which is wrong; that of the whole is about the host.
        wrong = [e for e in error.errors() if e["type"] != "default_factory_not_called"]
        errors = {
            str((*e["loc"], "host")[0]): e["msg"].removeprefix("Value error, ") for e in wrong
        }
        # Without the input, which may be a secret.
        raise ConfigError(f"{PREFIX}{n.upper()}: {what}" for n, what in errors.items()) from error


def server_environment(machine: Machine, name: str) -> dict[str, str]:
    """For `prefect`, `mlflow` or `worker` as a process: a server also gets its database."""
    variables = machine.environment()
    if name not in DATABASES:
        return variables
    # What somebody set by hand counts: for names that we cannot know, and databases elsewhere.
    own = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{machine.home / 'mlflow' / 'mlflow.db'}"}
    own |= _mlflow_names(machine)
    variables |= {n: os.environ.get(n) or value for n, value in own.items()}
    if secret := machine.database_password.get_secret_value():
        variables["PGPASSWORD"] = secret
    return variables


def _mlflow_names(machine: Machine) -> dict[str, str]:
    """Host headers that MLflow answers to: others may be a page that rebinds its name to us."""
    exposed = machine.host in _ANY_ADDRESS
    names = {"localhost", "127.0.0.1", urlsplit(machine.mlflow_url).hostname or ""}
    names |= {socket.gethostname(), socket.getfqdn()} if exposed else {machine.host}
    private = ("10.*", "172.*", "192.168.*") if exposed else ()
    # An IPv6 address has its brackets in the last one.
    allowed = [*names, *(f"{n}:*" for n in names), *private, urlsplit(machine.mlflow_url).netloc]
    origins = ",".join(f"http://{name}:{machine.mlflow_port}" for name in sorted(names))
    hosts = ",".join(sorted(allowed))
    return {"MLFLOW_SERVER_ALLOWED_HOSTS": hosts, "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": origins}
