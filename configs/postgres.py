"""The address of a Postgres server, taken apart so that its password ends up in no other address.

The servers get the password as PGPASSWORD, which both of their drivers read, as they read
`~/.pgpass`, PGSSLMODE and the like. What is logged or shown never has it.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

FORM = "postgresql://USER@HOST[:PORT][/NAME]"
_SCHEMES = ("postgresql", "postgres")


class Postgres(NamedTuple):
    """Where the databases `<name>_prefect` and `<name>_mlflow` are."""

    user: str
    password: str
    host: str
    port: int
    socket: str
    """Folder of a unix socket, or nothing."""
    name: str

    def database(self, server: str) -> str:
        return f"{self.name}_{server}"

    def url(self, driver: str, database: str) -> str:
        """For SQLAlchemy, without the password; `driver` may be empty."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = "" if self.socket else f"{host}:{self.port}"
        query = f"?host={quote(self.socket, safe='/')}&port={self.port}" if self.socket else ""
        return f"{scheme}://{quote(self.user, safe='')}@{where}/{database}{query}"

    def __str__(self) -> str:
        return f"{self.user}@{self.socket or self.host}:{self.port}"


def parse_postgres(address: str) -> Postgres:
    """Raises ValueError, with words that do not repeat the address: it may hold a password."""
    try:
        parts = urlsplit(address)
        port = parts.port or 5432
    except ValueError:
        raise ValueError(f"is no address of the form {FORM}") from None
    if parts.scheme not in _SCHEMES or not parts.username:
        raise ValueError(f"must be {FORM}")
    query = dict(parse_qsl(parts.query))
    socket = query.pop("host", "")
    if query:
        names = ", ".join(f"{n} as PG{n.upper()}" for n in query)
        raise ValueError(f"takes no options: set {names}, which both servers read")
    if bool(socket) == bool(parts.hostname):
        raise ValueError(f"must be {FORM}, or postgresql://USER@/NAME?host=FOLDER for a socket")
    name = parts.path.strip("/") or "klear"
    if not (name.isidentifier() and name.islower()):
        raise ValueError("must end with a name of lower-case letters, digits and _, or none")
    return Postgres(
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
        host=parts.hostname or "",
        port=port,
        socket=socket,
        name=name,
    )
