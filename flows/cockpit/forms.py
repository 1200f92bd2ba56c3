"""What the fields of a profile's form set, and what a form that is filled in asks for.

A form begins with the values of its profile, and submits every field. One that says what the
profile says, or nothing, changes nothing; the others become overrides as of `--set`, and the lines
of the box of changes come after them.
"""

import json
from collections.abc import Mapping
from typing import Any

from ...configs.loading import Request, read_profile
from ...configs.settings.base import Settings, flat
from ...configs.settings.pipeline import Pipeline

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
    "k": ("evaluate.protocols",),
    "sources": ("collect.sources",),
}
"""The settings that a field sets; `k` and `sources` change entries of their lists."""


def values_of(profile: Pipeline) -> dict[str, Any]:
    """What the fields show of a profile: the first of the settings that each of them sets. Without
    those that it does not have."""
    settings = flat(profile.model_dump(mode="json"))
    values = {
        field: settings.get(path, settings.get(f"{path}.name"))
        for field, (path, *_) in SETS.items()
    }
    values["k"] = profile.evaluate.protocols[0].k
    values["sources"] = [source.name for source in profile.collect.sources]
    return {field: value for field, value in values.items() if value is not None}


def overrides_of(profile: Pipeline, fields: Mapping[str, Any], changes: str) -> list[str]:
    """What a form changes of its profile, as `--set` takes it."""
    shown, overrides = values_of(profile), list[str]()
    for field, value in fields.items():
        if value is None or value == shown.get(field):
            continue
        if field == "k":
            value = [{**_entry(p), "k": value} for p in profile.evaluate.protocols]
        elif field == "sources":
            sources = {s.name: _entry(s) for s in profile.collect.sources}
            # A name that the profile does not have stays, to be refused.
            strangers = [{"use": name} for name in value if name not in sources]
            value = [*(entry for name, entry in sources.items() if name in value), *strangers]
        overrides += [f"{path}={json.dumps(value)}" for path in SETS[field]]
    return [*overrides, *lines_of(changes)]


def _entry(settings: Settings) -> dict[str, Any]:
    """As a profile writes it."""
    return settings.model_dump(mode="json", exclude_unset=True)


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
