"""The Postgres of the servers: there, or a message that says what to do. SQLite needs none."""

import time
from typing import TYPE_CHECKING

from configs.machine import Machine
from configs.postgres import Postgres

if TYPE_CHECKING:
    from psycopg2.extensions import connection

MAINTENANCE = "postgres"  # the database that every server has
CONNECT_TIMEOUT_S = 5


class DatabaseError(RuntimeError):
    """The database cannot be used; the message says why and what to do, without a password."""


def prepare_database(machine: Machine, server: str, wait_s: float) -> None:
    """Make the database of `prefect` or `mlflow`, unless it is there; both migrate it themselves.

    Waits up to `wait_s` seconds for a Postgres that is starting.
    """
    if machine.postgres is None:
        return
    deadline = time.monotonic() + wait_s
    while wrong := database_trouble(machine, server):
        if _make(machine.postgres, machine.postgres.database(server)):
            return
        if time.monotonic() > deadline:
            raise DatabaseError(f"Postgres at {machine.postgres}: {wrong}")
        time.sleep(0.5)


def database_trouble(machine: Machine, server: str) -> str:
    """Why the database of a server cannot be reached, in a line; nothing if it can."""
    import psycopg2

    if machine.postgres is None:
        return ""
    try:
        _connect(machine.postgres, machine.postgres.database(server)).close()
    except psycopg2.Error as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _make(postgres: Postgres, database: str) -> bool:
    """Create the database if it is what is missing; False if it is something else."""
    import psycopg2

    try:
        session = _connect(postgres, MAINTENANCE)
    except psycopg2.Error:
        return False
    try:
        session.autocommit = True  # CREATE DATABASE runs in no transaction
        with session.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
            if cursor.fetchone():
                return False
            # Two at once must not share template1 with whoever looks at it.
            cursor.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')
        return True
    except psycopg2.errors.InsufficientPrivilege:
        fix = f'CREATE DATABASE "{database}" OWNER "{postgres.user}" TEMPLATE template0;'
        raise DatabaseError(
            f"Postgres at {postgres}: {database} is missing and {postgres.user} may not create it; "
            f"as an administrator run: {fix}"
        ) from None
    except psycopg2.Error:
        return False  # somebody else was faster, or the server went away: look again
    finally:
        session.close()


def _connect(postgres: Postgres, database: str) -> "connection":
    import psycopg2

    return psycopg2.connect(
        host=postgres.socket or postgres.host,
        port=postgres.port,
        user=postgres.user,
        password=postgres.password or None,  # None: PGPASSWORD, ~/.pgpass
        dbname=database,
        connect_timeout=CONNECT_TIMEOUT_S,
    )
