"""What the fields of a profile's form set, and what a form that is filled in asks for.

A form begins with the values of its profile, and submits every field. One that says what the
profile says, or nothing, changes nothing; the others become overrides as of `--set`, and the lines
of the box of changes come after them.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ...configs.loading import read_profile
from ...configs.settings.base import flat
from ...configs.settings.pipeline import Pipeline
from ..request import Request

SETS: dict[str, tuple[str, ...]] = {
    "sft_epochs": ("sft.epochs",),
    "sft_learning_rate": ("sft.learning_rate",),
    "loss": ("rl_math.loss", "rl_code.loss"),
    "eps_low": ("rl_math.loss.eps_low", "rl_code.loss.eps_low"),
    "eps_high": ("rl_math.loss.eps_high", "rl_code.loss.eps_high"),
    "beta1": ("rl_math.loss.beta1", "rl_code.loss.beta1"),
    "beta2": ("rl_math.loss.beta2", "rl_code.loss.beta2"),
    "lm_weight": ("rl_math.lm_weight", "rl_code.lm_weight"),
    "rl_math_learning_rate": ("rl_math.learning_rate",),
    "rl_math_steps": ("rl_math.steps",),
    "rl_code_learning_rate": ("rl_code.learning_rate",),
    "rl_code_steps": ("rl_code.steps",),
    "k": ("evaluate.protocols.*.k",),
    "sources": ("collect.sources",),
}
"""The settings that a field sets; `*` stands for each benchmark."""


def settings_of(field: str, profile: Pipeline) -> list[str]:
    """Dotted names of what a field sets."""
    names = [protocol.name for protocol in profile.evaluate.protocols]
    patterns = SETS[field]
    return list(chain.from_iterable([p.replace("*", n) for n in names] if "*" in p else [p]
                                    for p in patterns))  # fmt: skip


def values_of(profile: Pipeline) -> dict[str, Any]:
    """What the fields show of a profile: the first of the settings that each of them sets. Without
    those that it does not have."""
    settings = flat(profile.model_dump(mode="json"))
    paths = {field: settings_of(field, profile)[0] for field in SETS}
    values = {field: settings.get(p, settings.get(f"{p}.name")) for field, p in paths.items()}
    values["sources"] = [source.name for source in profile.collect.sources]
    return {field: value for field, value in values.items() if value is not None}


def overrides_of(profile: Pipeline, fields: Mapping[str, Any], changes: str) -> list[str]:
    """What a form changes of its profile, as `--set` takes it."""
    shown, overrides = values_of(profile), list[str]()
    for field, value in fields.items():
        if value is None or value == shown.get(field):
            continue
        if field == "sources":
            value = _sources(profile, value)
        overrides += [f"{name}={json.dumps(value)}" for name in settings_of(field, profile)]
    return [*overrides, *lines_of(changes)]


def _sources(profile: Pipeline, names: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the profile that are named; a name that it does not have stays, to be refused."""
    entries = {s.name: s.model_dump(mode="json", exclude_unset=True)
               for s in profile.collect.sources}  # fmt: skip
    chosen = [entry for name, entry in entries.items() if name in names]
    return [*chosen, *({"use": name} for name in names if name not in entries)]


def lines_of(changes: str) -> list[str]:
    """Those of a box of changes that say something."""
    lines = map(str.strip, changes.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_request(
    profile: str, fields: Mapping[str, Any] = {}, changes: str = "", seed: int | None = None
) -> Request:
    """What a form or a command asks for; raises ConfigError with all that is wrong."""
    file = read_profile(profile)
    overrides = overrides_of(file.pipeline(), fields, changes)
    return Request.from_profile(file, overrides if seed is None else [*overrides, f"seed={seed}"])
