"""Prefect's server for `klear up`, with one traceback fewer in every two seconds of its log.

Each poll of a worker makes the server start two tasks at once: one writes the time of the poll
to the work queues, the other reads the deployments and then writes to them. With SQLite the second
is refused ("database is locked") where the first commits in between, and succeeds half a second
later. Prefect 3.8.8 holds the database from the start; it needs a newer fastapi than vLLM allows.
"""

import logging
from typing import Any

from prefect.server.api.server import create_app
from sqlalchemy.exc import OperationalError


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Not of that task where it lost that race and will be tried again. Its fifth failure, of which
    it is not tried again, is logged by another logger."""
    error = record.exc_info[1] if record.exc_info else None
    locked = isinstance(error, OperationalError) and "database is locked" in str(error.orig)
    return not (locked and "mark_deployments_ready(" in record.getMessage())


def prefect_app() -> Any:
    """What `uvicorn --factory` serves."""
    logging.getLogger("docket.dependencies").addFilter(is_worth_a_line)
    return create_app()
