"""Rename flow runs whose parameters failed validation: Prefect would leave them unnamed."""

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


def rename_invalid_run(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """A hook for failed runs: one that was refused is called after what it asked for and why."""
    if (state.message or "").startswith(_REFUSED):
        with get_client(sync_client=True) as client:
            name = refused_name(flow, flow_run.parameters, state.message)
            client.set_flow_run_name(flow_run.id, name)


def refused_name(flow: Flow[..., Any], asked: Mapping[str, Any], message: str | None) -> str:
    """`tiny-seed0 · refused: settings.rl_math`; with the stage where the form has only one."""
    settings = asked.get("settings")
    known = {**asked, **(settings if isinstance(settings, dict) else {})}
    profile = Path(str(known.get("profile") or flow.name)).stem
    fields = list(dict.fromkeys(_FIELD.findall(message or "")))
    why = f"refused: {', '.join(fields[:MOST_SHOWN])}".removesuffix(": ")
    stage = flow.fn.__name__.partition("stage_")[2]
    words = [f"{profile}-seed{known['seed']}" if "seed" in known else profile, stage, why]
    return " · ".join(filter(None, words))
