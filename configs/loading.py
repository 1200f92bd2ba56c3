"""Profiles: files of configs/profiles, what `--set` changes of them, and how a run is called."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from configs.settings.base import Settings, fields_with_meaning
from configs.settings.explain import ConfigError, explain, nearest
from configs.settings.overrides import apply_override, layered, read_yaml
from configs.settings.pipeline import Pipeline

__all__ = ["ConfigError", "load_group", "load_profile", "profiles"]

FOLDER = Path(__file__).parent / "profiles"
Group = TypeVar("Group", bound=Settings)
MOST_SHOWN = 3
LONGEST_VALUE = 24


def profiles() -> list[str]:
    """Names of the profiles that ship with the package (ablations are not among them)."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_profile(name_or_path: str, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline a profile describes.

    Args:
        name_or_path: `tiny`, or the path of a YAML file.
        overrides: `a.b=c` texts, applied in order; values are YAML.

    Raises:
        ConfigError: with every problem found, one line each.
    """
    path = _find(name_or_path)
    data = _with_bases(path)
    problems: list[str] = []
    for text in overrides:
        try:
            apply_override(data, text)
        except ConfigError as error:
            problems += error.problems
    data.setdefault("profile", path.stem)
    if "data" in data:
        problems += _distribute_root(data, data.pop("data"))
    # Defaults that differ from those of their class (rl_code's), so that a profile that sets one
    # key of such a stage keeps the others.
    defaults = {
        name: field.default.model_dump(mode="json", exclude_unset=True)
        for name, field in Pipeline.model_fields.items()
        if isinstance(field.default, BaseModel) and field.default.model_fields_set
    }
    try:
        pipeline = Pipeline.model_validate(layered(defaults, data))
    except ValidationError as error:
        raise ConfigError(dict.fromkeys([*problems, *explain(error, Pipeline)])) from error
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return pipeline


def load_group(model: type[Group], overrides: Sequence[str]) -> Group:
    """One settings class from its defaults and overrides; raises ConfigError as load_profile."""
    data: dict[str, Any] = {}
    for text in overrides:
        apply_override(data, text)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, model)) from error


def _find(name_or_path: str) -> Path:
    if name_or_path in profiles():
        return FOLDER / f"{name_or_path}.yaml"
    path = Path(name_or_path).expanduser()
    if os.path.isfile(path) and path.suffix in (".yaml", ".yml"):
        return path
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError([f"{name_or_path}: no such file"])
    known = f"(profiles: {', '.join(profiles())}; or give the path of a .yaml file)"
    meant = nearest(name_or_path, profiles())
    raise ConfigError([f"no profile is called {name_or_path!r}{meant} {known}"])


def _with_bases(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's data over that of the profile it extends (a path is relative to the file)."""
    if path.resolve() in seen:
        chain = " → ".join(p.name for p in (*seen, path))
        raise ConfigError([f"extends goes in a circle: {chain}"])
    data = read_yaml(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise ConfigError([f"{path}: extends: {base!r} is no profile name"])
    beside = path.parent / base
    below = _with_bases(beside if beside.is_file() else _find(base), (*seen, path.resolve()))
    below.pop("profile", None)  # a derived profile is another profile
    return layered(below, data)


def _distribute_root(data: dict[str, Any], group: Any) -> list[str]:
    """`data.root` becomes the root of each place that has none of its own; or what is wrong."""
    root = group.get("root") if isinstance(group, dict) and len(group) == 1 else None
    if not isinstance(root, str):
        return [f"data: {group!r} is no folder; did you mean data.root? Write data.root=FOLDER"]
    for name in ("collect", "benchmarks"):
        if isinstance(stage := data.setdefault(name, {}), dict):
            stage.setdefault("root", root)
    for name in ("distill", "rate", "sample", "agreement"):
        stage = data.get(name)
        engine = stage.get("engine") if isinstance(stage, dict) else None
        if isinstance(engine, dict) and isinstance(engine.get("files"), list):
            engine["files"] = [str(Path(root) / str(file)) for file in engine["files"]]
    return []


def run_name(settings: Pipeline, profile: Pipeline | None = None) -> str:
    """`tiny-seed0`, and what differs from the profile: `tiny-seed0 · sft.learning_rate=1e-4`.

    Args:
        settings: those of the run.
        profile: what they are compared with; default: the shipped profile of that name, and
            nothing for the name of a file that is not among them.
    """
    name = f"{settings.profile}-seed{settings.seed}"
    if profile is None and settings.profile in profiles():
        profile = load_profile(settings.profile)
    changed = changed_words(settings, profile or settings)
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
        if name not in ("profile", "seed")
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
    """A value as one would type it: 2.5e-5, null, 3 entries."""
    if isinstance(value, BaseModel):
        return "changed"
    if isinstance(value, tuple):
        return f"{len(value)} entries"
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
