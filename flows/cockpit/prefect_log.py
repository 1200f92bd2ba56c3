"""Keeps one traceback in every two seconds out of the log of Prefect's server (prefect_log.yaml).

Each poll of a worker makes the server start two tasks at once: one writes the time of the poll
to the work queues, the other reads the deployments and then writes to them. With SQLite the second
is refused ("database is locked") where the first commits in between, and succeeds half a second
later. Prefect 3.8.8 holds the database from the start; it needs a newer fastapi than vLLM allows.
"""

import logging

from sqlalchemy.exc import OperationalError


class WorthALine(logging.Filter):
    """Not of that task where it lost that race and will be tried again. Its fifth failure, of which
    it is not tried again, is logged by another logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        locked = isinstance(error, OperationalError) and "database is locked" in str(error.orig)
        return not (locked and "mark_deployments_ready(" in record.getMessage())
