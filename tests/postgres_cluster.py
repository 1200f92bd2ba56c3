"""A Postgres of its own for a test: made in a temporary folder, on loopback, with a password."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import free_ports

USER, PASSWORD = "klear_tests", "secret-of-the-database"
INSTALLED = Path("/usr/lib/postgresql")


class Cluster:
    """`pg_ctl` and what it needs. initdb refuses root, so root runs it as the user `postgres`."""

    def __init__(self, folder: Path) -> None:
        self.data, self.log = folder / "data", folder / "postgres.log"
        (self.port,) = free_ports(1)
        words = folder / "password"
        words.write_text(PASSWORD)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (folder, words):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "--auth=scram-sha-256", f"--pwfile={words}", "--no-sync",
                  f"--username={USER}", "--encoding=UTF8", "--locale=C")  # fmt: skip

    @property
    def place(self) -> str:
        """As in an address, without the password."""
        return f"{USER}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Also again, after a stop: a client's own end may have the port just now."""
        for _ in range(30):
            try:
                return self._start()
            except subprocess.CalledProcessError:
                time.sleep(1)
        self._start()

    def _start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.data}"
        self._run("pg_ctl", "start", "--wait", f"--log={self.log}", f"--options={options}")

    def stop(self, mode: str) -> None:
        """`immediate` is what a crash is like: the next start recovers from the journal."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def rows(self, database: str, query: str) -> list[str]:
        """What psql prints, a line a row."""
        return self._ask("psql", "-X", "-d", database, "-Atc", query).splitlines()

    def dump(self, database: str) -> str:
        """All of it, as SQL."""
        return self._ask("pg_dump", database)

    def _ask(self, program: str, *words: str) -> str:
        where = ["--host=127.0.0.1", f"--port={self.port}", f"--username={USER}"]
        return subprocess.run(
            [_binary(program), *where, *words],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def _run(self, program: str, *words: str) -> None:
        as_other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        command = [_binary(program), f"--pgdata={self.data}", *words]
        subprocess.run(
            [*(as_other if os.geteuid() == 0 else []), *command],
            cwd=self.data.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server inherits it: a pipe would never end
            check=True,
            timeout=300,
        )


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Started; ended and removed on the way out."""
    folder = Path(tempfile.mkdtemp(prefix="klear-postgres-"))  # not below pytest's: root's alone
    try:
        cluster = Cluster(folder)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop("immediate")
    finally:
        shutil.rmtree(folder)


def _binary(name: str) -> str:
    programs = sorted(INSTALLED.glob(f"*/bin/{name}"), key=lambda p: float(p.parts[-3]))
    path = str(programs[-1]) if programs else shutil.which(name)
    assert path, f"{name} is missing: apt-get install postgresql"
    return path
