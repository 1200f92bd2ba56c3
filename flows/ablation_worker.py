"""A process that computes cells of an ablation, one line of JSON on stdin each.

A cell is a flow run of its own. Its result, or what it failed with, goes to the file that the line
names. The process ends with its input.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from configs.ablation import load_ablation
from flows.ablation_cell import compute, label
from flows.relayed_display import Relay
from tasks.cancelling import CancelledInUI, cancellable, say_cancelled
from tasks.display import showing


@flow(name="klear-cell", flow_run_name="{name} · {label}")
def cell(name: str, label: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """One arm of an experiment with one seed. Returns the evaluation and the model it is of."""
    spec = load_ablation(told["name"])
    settings = spec.settings(told["profile"], told["arm"], told["seed"])
    with cancellable(str(flow_run.id)):
        made = compute(spec, told["arm"], settings, told["parent"])
    return [artifact.model_dump(mode="json") for artifact in made]


def main() -> int:
    """Exit code: 1 when it was interrupted, else 0."""
    signal.signal(signal.SIGTERM, _interrupt)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            with showing(Relay(Path(told["events"]))):
                called = label(told["arm"], told["seed"])
                found = {"artifacts": cell(load_ablation(told["name"]).name, called, told)}
        except KeyboardInterrupt as stop:
            if isinstance(stop, CancelledInUI):
                say_cancelled(stop.flow_run)
            _answer(told, {"error": str(stop) or "interrupted"})
            return 1
        except Exception as error:
            found = {"error": str(error).strip() or type(error).__name__}
        _answer(told, found)
    return 0


def _answer(told: dict[str, Any], found: dict[str, Any]) -> None:
    """Written whole: who waits for the file reads it as soon as it is there."""
    result = Path(told["result"])
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    os.replace(partial, result)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt("ended by the run it belongs to")


if __name__ == "__main__":
    sys.exit(main())
