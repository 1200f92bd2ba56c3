"""A Hugging Face hub on loopback: repositories with commits, as its clients ask for them.

Routes: info of a repository at a revision, the tree of its files, `paths-info`, and `resolve` with
ETag and commit. Errors carry the `X-Error-Code` that the clients tell apart.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
Files = dict[str, bytes]


class Repository:
    """The commits of one model or dataset; `main` is the last."""

    def __init__(self, kind: str, name: str, needs_key: bool = False) -> None:
        self.kind, self.name, self.needs_key = kind, name, needs_key
        self.commits: dict[str, Files] = {}

    def commit(self, files: Files) -> str:
        """Its hash; the files are all that it holds."""
        seed = f"{self.name}/{len(self.commits)}".encode()
        sha = hashlib.sha1(seed).hexdigest()
        self.commits[sha] = files
        return sha

    def sha_of(self, revision: str) -> str | None:
        if revision == "main":
            return list(self.commits)[-1]
        return revision if revision in self.commits else None


class Hub:
    """What it holds and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.url = ""
        self.asked: Counter[str] = Counter()
        """Contents that were sent, by `repository/path@commit`."""

    def add(self, kind: str, name: str, files: Files, needs_key: bool = False) -> Repository:
        """A repository (kind `models` or `datasets`) with one commit."""
        made = Repository(kind, name, needs_key)
        made.commit(files)
        self.repositories[kind, name] = made
        return made

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Variables of a client that knows this hub alone and has no key."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "KLEAR_"))}
        return {
            **kept, "HF_ENDPOINT": self.url, "HF_HOME": str(home / "hf"), "HOME": str(home),
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
            "KLEAR_HOME": str(home / "klear"), **more,
        }  # fmt: skip

    def client(self, home: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """A Python of its own: the address of the hub is read when its packages are imported."""
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=self.environment(home, **more),
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip


Answer = tuple[int, dict[str, str], bytes]


def refused(status: int, code: str, message: str) -> Answer:
    return status, {"X-Error-Code": code, "X-Error-Message": message}, b""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._reply(*self._found(b""))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._reply(*self._found(self.rfile.read(int(self.headers.get("content-length", 0)))))

    def _found(self, body: bytes) -> Answer:
        parts = [unquote(p) for p in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "api" and len(parts) >= 4:
            repository = self.hub.repositories.get((parts[1], "/".join(parts[2:4])))
            return self._guarded(repository, lambda r: self._api(r, parts[4:], body))
        kind = "datasets" if parts[0] == "datasets" else "models"
        parts = parts[1:] if kind == "datasets" else parts
        repository = self.hub.repositories.get((kind, "/".join(parts[:2])))
        if parts[2:3] != ["resolve"]:
            return 404, {}, b""
        return self._guarded(repository, lambda r: self._file(r, parts[3], "/".join(parts[4:])))

    def _guarded(
        self, repository: Repository | None, answer: Callable[[Repository], Answer]
    ) -> Answer:
        if repository is None:  # the hub does not tell strangers what it does not hold
            return refused(401, "RepoNotFound", "Repository not found")
        if repository.needs_key and not self.headers.get("authorization"):
            return refused(401, "GatedRepo", f"Access to {repository.name} is restricted")
        return answer(repository)

    def _api(self, repository: Repository, words: list[str], body: bytes) -> Answer:
        what, revision = words[:2] if words else ("revision", "main")
        sha = repository.sha_of(revision)
        if sha is None:
            return refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[sha]
        if what == "revision":
            siblings = [{"rfilename": name} for name in files]
            about = {"id": repository.name, "sha": sha, "siblings": siblings, "private": False,
                     "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                     "lastModified": "2026-01-01T00:00:00.000Z"}  # fmt: skip
            return _json(about)
        if what == "tree":
            below = "/".join(words[2:])
            return _json([_entry(n, c) for n, c in files.items() if n.startswith(below)])
        wanted = _wanted(body, self.headers.get("content-type", ""))
        return _json([_entry(n, files[n]) for n in wanted if n in files])

    def _file(self, repository: Repository, revision: str, path: str) -> Answer:
        sha = repository.sha_of(revision)
        if sha is None:
            return refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = repository.commits[sha].get(path)
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha}, b""
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": sha,
                   "X-Linked-Size": str(len(content))}  # fmt: skip
        if self.command != "HEAD":
            self.hub.asked[f"{repository.name}/{path}@{sha}"] += 1
        return 200, headers, content

    def _reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        with suppress(ConnectionError):  # the client may have read enough
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _wanted(body: bytes, kind: str) -> list[str]:
    if "json" in kind:
        paths = json.loads(body)["paths"]
        return [paths] if isinstance(paths, str) else paths
    return parse_qs(body.decode()).get("paths", [])


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving() as running:
        yield running
