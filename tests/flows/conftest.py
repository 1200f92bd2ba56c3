"""One home with real servers and a worker for all tests of flows, and what one whole run left."""

import http.server
import threading
from collections.abc import Iterator

import pytest
from home import ZOMBIE_MINUTES, Home


@pytest.fixture(scope="session")
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A receiver of webhooks on loopback: its address, and what was posted to it."""
    posts: list[str] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret-token", posts
    server.shutdown()


@pytest.fixture(scope="session")
def cockpit(tmp_path_factory, webhook):
    folder = tmp_path_factory.mktemp("cockpit")
    place = Home(
        folder,
        KLEAR_WORKER_LIMIT="2",
        KLEAR_GPU_SLOTS="1",
        KLEAR_FORM_PROFILE=str(folder / "small.yaml"),
        KLEAR_WEBHOOK=webhook[0],
        KLEAR_ZOMBIE_MINUTES=str(ZOMBIE_MINUTES),
    )
    place.klear("up")
    yield place
    place.klear("down")


@pytest.fixture(scope="session")
def first(cockpit: Home) -> str:
    """What the first whole run of the small profile printed."""
    return cockpit.run()
