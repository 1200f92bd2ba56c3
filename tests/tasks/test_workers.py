import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

from tasks.workers import PRELOADED, end, mapped, worker_pool

ROOT = Path(__file__).parents[2]


def servers() -> list[int]:
    """The fork servers of this process."""
    return [
        child.pid
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "forkserver" in " ".join(child.cmdline())
    ]


def test_what_the_server_imports_is_there_to_import():
    for name in PRELOADED:  # the server passes over what it cannot import, without a word
        importlib.import_module(name)


def test_pools_share_one_server():
    with worker_pool(1) as first, worker_pool(1) as second:
        parents = {pool.submit(os.getppid).result() for pool in (first, second)}
    assert parents == set(servers())
    assert len(parents) == 1


def test_a_worker_sees_the_environment_of_now_and_not_of_when_the_server_began(monkeypatch):
    monkeypatch.setenv("KLEAR_TEST_OLD", "old")
    with worker_pool(1) as pool:
        assert pool.submit(os.getenv, "KLEAR_TEST_OLD").result() == "old"
    monkeypatch.delenv("KLEAR_TEST_OLD")
    monkeypatch.setenv("KLEAR_TEST_NEW", "new")
    with worker_pool(1) as pool:
        assert pool.submit(os.getenv, "KLEAR_TEST_NEW").result() == "new"
        assert pool.submit(os.getenv, "KLEAR_TEST_OLD").result() is None


def test_a_server_that_was_killed_is_started_again():
    with worker_pool(1) as pool:
        pool.submit(os.getpid).result()
    (server,) = servers()
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    with worker_pool(1) as pool:
        assert pool.submit(os.getppid).result() != server


def test_a_server_that_ends_before_its_workers_begin_is_a_broken_pool():
    with worker_pool(1) as pool:
        pool.submit(os.getpid).result()
    (server,) = servers()
    os.kill(server, signal.SIGSTOP)  # so that it is killed with the question unanswered
    threading.Timer(0.3, os.kill, (server, signal.SIGKILL)).start()
    pool = worker_pool(1)
    try:
        with pytest.raises(BrokenProcessPool, match="has ended"):
            mapped(pool, abs, [1])
    finally:
        end(pool)


def test_where_no_socket_can_be_made_workers_start_by_themselves(tmp_path):
    """A socket's name has 108 bytes at most, and batch systems give long folders."""
    long = tmp_path / ("f" * 100)
    long.mkdir()
    code = (
        "import os\nfrom tasks.workers import worker_pool\n"
        "with worker_pool(1) as pool:\n    print(pool.submit(os.getppid).result() == os.getpid())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(long)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ran.stdout.strip(), ran.returncode) == ("True", 0), ran.stderr


FOREIGN = {
    "tasks/__init__.py": "raise OSError('not what was wanted')",
    "numba.py": "raise OSError('not what was wanted')",
    "socket.py": "raise OSError('not what was wanted')",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_modules_of_the_folder_one_works_in_are_not_taken_for_ours(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(FOREIGN[name])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "main.py").write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[0] = {str(ROOT)!r}
        from tasks.folding import fold
        from tasks.workers import worker_pool
        if __name__ == "__main__":
            import pyarrow as pa
            with worker_pool(1) as pool:
                folded = pool.submit(fold, pa.chunked_array([["A b"]])).result()
                print(bytes(folded.data))
        """)
    )
    ran = subprocess.run(
        [sys.executable, "run/main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout.strip(), ran.returncode) == ("b'a b'", 0), ran.stderr
