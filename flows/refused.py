"""Names for runs that are refused: settings that do not fit together end them without one."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State

_REFUSED = "Validation of flow parameters failed"  # how Prefect's message begins
_FIELD = re.compile(r"^\s*- ([^\s:]+):", re.MULTILINE)
MOST_SHOWN = 3


def name_refused(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """A hook for failed runs: one that was refused is called after what it asked for and why."""
    if (state.message or "").startswith(_REFUSED):
        with get_client(sync_client=True) as client:
            name = refused_name(flow, flow_run.parameters, state.message)
            client.set_flow_run_name(flow_run.id, name)


def refused_name(flow: Flow[..., Any], asked: Mapping[str, Any], message: str | None) -> str:
    """`tiny-seed0 · refused: settings.rl_math`; with the stage where the form has only one."""
    settings = asked.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    profile = settings.get("profile") or Path(str(asked.get("profile", ""))).stem or flow.name
    seed = settings.get("seed", asked.get("seed"))
    fields = list(dict.fromkeys(_FIELD.findall(message or "")))
    why = ", ".join(fields[:MOST_SHOWN])
    stage = flow.fn.__name__.partition("stage_")[2]
    words = [str(profile) if seed is None else f"{profile}-seed{seed}", stage, f"refused: {why}"]
    return " · ".join(filter(None, words)).removesuffix(": ")
