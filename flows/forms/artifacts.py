"""Artifacts on the page of a run, also when the server is away at the moment they are made."""

import time
from collections.abc import Callable
from typing import Any

import httpx
from prefect import get_run_logger

PAUSE_S = 3.0
PATIENCE_S = 300.0


def create_artifact(create: Callable[..., Any], **about: Any) -> None:
    """`create(**about)`, again and again while nobody answers (Prefect itself tries a server that
    is busy again). A page is not worth a run: after `PATIENCE_S`, or when the server refuses it,
    the log says so and the run goes on.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            create(**about)
            return
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.TransportError) or time.monotonic() > deadline:
                get_run_logger().warning("%s is not shown: %s", about.get("key"), error)
                return
        time.sleep(PAUSE_S)
