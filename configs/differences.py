"""What a run's settings change of their profile, in few words: the name a run goes by."""

from typing import Any

from pydantic import BaseModel

from configs.base import Settings, fields_with_meaning
from configs.explain import ConfigError
from configs.load import load_profile
from configs.settings import Pipeline

MOST_SHOWN = 3
LONGEST_VALUE = 24
_IN_THE_NAME = ("profile", "seed")


def run_name(settings: Pipeline, profile: Pipeline | None = None) -> str:
    """`tiny-seed0`, and what differs from the profile: `tiny-seed0 · sft.learning_rate=1e-4`.

    Args:
        settings: those of the run.
        profile: what they are compared with; default: the shipped profile of that name, and
            nothing for the name of a file that is not among them.
    """
    name = f"{settings.profile}-seed{settings.seed}"
    changed = changed_words(settings, profile or _shipped(settings.profile) or settings)
    return f"{name} · {', '.join(changed)}" if changed else name


def changed_words(settings: Settings, base: Settings) -> list[str]:
    """The first few differences as `sft.learning_rate=1e-4`, then how many more there are."""
    changed = differences(settings, base)
    more = len(changed) - MOST_SHOWN
    shown = [f"{path}={value}" for path, value in changed[:MOST_SHOWN]]
    return [*shown, f"and {more} more"] if more > 0 else shown


def differences(settings: Settings, base: Settings) -> list[tuple[str, str]]:
    """Dotted names of the settings with a meaning that differ, with the new value, in order.

    Both are of one class. Profile and seed are left out: they are in every name.
    """
    return [
        found
        for name in fields_with_meaning(settings)
        if name not in _IN_THE_NAME
        for found in _changes(getattr(settings, name), getattr(base, name), name)
    ]


def _changes(now: Any, before: Any, path: str) -> list[tuple[str, str]]:
    if now == before:
        return []
    if isinstance(now, BaseModel) and type(now) is type(before):
        pairs = [(n, getattr(now, n), getattr(before, n)) for n in fields_with_meaning(now)]
        return [found for n, new, old in pairs for found in _changes(new, old, f"{path}.{n}")]
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        return [
            found
            for i, (new, old) in enumerate(zip(now, before, strict=True))
            for found in _changes(new, old, f"{path}.{getattr(new, 'name', i)}")
        ]
    return [(path, _short(now))]


def _short(value: Any) -> str:
    """A value as one would type it: 1e-4, none, 3 entries."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, BaseModel):
        return "changed"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} entries"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.5e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _shipped(name: str) -> Pipeline | None:
    try:
        return load_profile(name)
    except ConfigError:
        return None
