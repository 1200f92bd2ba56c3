"""An S3 server of a test, and what its clients must know."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server in this process."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def signed_on(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    keys = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "ENDPOINT_URL_S3": server}
    for name, value in keys.items():
        monkeypatch.setenv(f"AWS_{name}", value)
