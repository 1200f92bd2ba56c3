"""A profile by name or path, with `--set` overrides, as one validated Pipeline.

Layers, later ones win: the defaults of the settings classes (the paper's values), the profile a
file `extends`, the file, the overrides. `data: {root: FOLDER}` is short for the root of every
relative file name: collect, benchmarks and the files of recorded engines.
"""

import copy
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from configs.base import Settings
from configs.explain import ConfigError, explain, nearest
from configs.overrides import apply_override, layered, read_yaml
from configs.settings import Pipeline

FOLDER = Path(__file__).parent
_COLLECTORS = ("collect", "benchmarks")
_SAMPLERS = ("distill", "rate", "sample", "agreement")
Group = TypeVar("Group", bound=Settings)

__all__ = ["ConfigError", "load_group", "load_profile", "profiles"]


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
    data, root_problems = _distribute_root(data)
    problems += root_problems
    try:
        pipeline = Pipeline.model_validate(layered(_stage_defaults(), data))
    except ValidationError as error:
        raise ConfigError(_unique([*problems, *explain(error, Pipeline)])) from error
    if problems:
        raise ConfigError(_unique(problems))
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
    if path.suffix in (".yaml", ".yml"):
        with suppress(OSError):  # a name too long for a file system
            if path.is_file():
                return path
        raise ConfigError([f"{name_or_path}: no such file"])
    raise ConfigError(
        [
            f"no profile is called {name_or_path!r}{nearest(name_or_path, profiles())} "
            f"(profiles: {', '.join(profiles()) or 'none'}; or give the path of a .yaml file)"
        ]
    )


def _with_bases(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's data over that of the profile it extends (a path is relative to the file)."""
    path = path.resolve()
    if path in seen:
        chain = " → ".join(p.name for p in (*seen, path))
        raise ConfigError([f"extends goes in a circle: {chain}"])
    data = read_yaml(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise ConfigError([f"{path}: extends: {base!r} is no profile name"])
    beside = path.parent / base
    below = _with_bases(beside if beside.is_file() else _find(base), (*seen, path))
    below.pop("profile", None)  # a derived profile is another profile
    return layered(below, data)


def _distribute_root(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`data.root` becomes the root of each place that has none of its own."""
    if "data" not in data:
        return data, []
    data = copy.deepcopy(data)
    group = data.pop("data")
    if not isinstance(group, dict):
        return data, [f"data: {group!r} is no group of settings; write data.root=FOLDER"]
    unknown = [f"data.{k}: unknown key; did you mean data.root?" for k in group if k != "root"]
    root = group.get("root")
    if not isinstance(root, str):
        return data, unknown or [f"data.root: {root!r} is no text (put it in quotes)"]
    for name in _COLLECTORS:
        stage = data.setdefault(name, {})
        if isinstance(stage, dict):
            stage.setdefault("root", root)
    for name in _SAMPLERS:
        stage = data.get(name)
        if not isinstance(stage, dict):
            continue
        engine = stage.get("engine")
        if isinstance(engine, dict) and isinstance(engine.get("files"), list):
            # New groups, for a YAML alias makes two stages share one.
            files = [str(Path(root) / str(file)) for file in engine["files"]]
            data[name] = {**stage, "engine": {**engine, "files": files}}
    return data, unknown


def _stage_defaults() -> dict[str, Any]:
    """Defaults that differ from those of their class (rl_code's), so that a profile that sets one
    key of such a stage keeps the others."""
    stages = {n: f.default for n, f in Pipeline.model_fields.items()}
    return {
        name: default.model_dump(mode="json", exclude_unset=True)
        for name, default in stages.items()
        if isinstance(default, BaseModel) and default.model_fields_set
    }


def _unique(problems: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(problems))
