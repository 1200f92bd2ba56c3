"""Profiles: files of configs/profiles, what `--set` changes of them, and how a run is called."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import ValidationError
from ruamel.yaml import YAML, YAMLError

from .settings.base import Settings, first_few, flat, group_of, layered, meaning, short
from .settings.explain import ConfigError, explain, nearest
from .settings.loss import CONSTANTS, LOSSES
from .settings.pipeline import Pipeline
from .settings.sources import CollectSettings

PROFILES = Path(__file__).parent / "profiles"
Group = TypeVar("Group", bound=Settings)


def names_in(folder: Path) -> list[str]:
    """Of the YAML files that ship with the package in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def profiles() -> list[str]:
    return names_in(PROFILES)


@dataclass(frozen=True)
class Profile:
    """What the file of a profile says, with those that it extends."""

    data: Mapping[str, Any]
    name: str = ""
    """As somebody named it: `tiny`, or the path of the file."""

    def pipeline(self, overrides: Sequence[str] = ()) -> Pipeline:
        """The pipeline with `a.b=c` texts applied in order. Raises ConfigError with every problem
        found; a source that only the overrides leave to no stage is none."""
        pipeline = load_group(Pipeline, overrides, self.data)
        forgotten = set(pipeline.untrained)
        if forgotten and overrides:
            with suppress(ConfigError):  # what the file leaves out, overrides may bring
                plain = load_group(Pipeline, (), self.data)
                forgotten -= {s.name for s in plain.collect.sources} - {*plain.untrained}
        if forgotten:
            raise ConfigError(pipeline.lines_to_add(sorted(forgotten)))
        return pipeline


@dataclass(frozen=True)
class Request:
    """What somebody asks for: a pipeline, and its profile unchanged."""

    settings: Pipeline
    profile: Pipeline
    file: Profile = Profile({})
    overrides: tuple[str, ...] = ()

    @classmethod
    def from_profile(cls, profile: Profile, overrides: Sequence[str]) -> Self:
        """Raises ConfigError with all that is wrong."""
        return cls(profile.pipeline(overrides), profile.pipeline(), profile, tuple(overrides))

    def refuse_left_out(self, *stages: str) -> None:
        """Raise ConfigError for a stage that the profile does not have."""
        if left_out := sorted(self.settings.stages_left_out & {*stages}):
            wrong = f"is no stage of the profile {self.settings.profile}"
            raise ConfigError(f"{stage} {wrong}" for stage in left_out)

    @property
    def name(self) -> str:
        """`sft.learning_rate=1e-4 · tiny-seed0`."""
        return run_name(self.settings, self.profile)

    @property
    def changed(self) -> tuple[tuple[str, str], ...]:
        """Dotted names and new values of what differs from the profile."""
        return tuple(differences(self.settings, self.profile))


def read_profile(name_or_path: str) -> Profile:
    """`tiny`, or the YAML file of this path; raises ConfigError."""
    path = named_file(PROFILES, "profile", name_or_path)
    return Profile({"profile": path.stem, **_with_bases(path)}, name_or_path)


def load_profile(name_or_path: str, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline of a profile with overrides; raises ConfigError."""
    return read_profile(name_or_path).pipeline(overrides)


def load_group(model: type[Group], overrides: Sequence[str], values: Mapping = {}) -> Group:
    """One settings class from values and overrides; raises ConfigError as load_profile."""
    try:
        data = reduce(overridden, overrides, dict(values))
        return model.model_validate(_with_defaults_extended(model, data))
    except ValidationError as error:
        raise ConfigError(dict.fromkeys(explain(error, model))) from None


def named_file(folder: Path, kind: str, name_or_path: str) -> Path:
    """One of the folder's files by its name, or any YAML file by its path."""
    path, names = Path(name_or_path).expanduser(), names_in(folder)
    if name_or_path in names:
        return folder / f"{name_or_path}.yaml"
    if path.suffix in (".yaml", ".yml") and os.path.isfile(path):
        return path
    choice = f"{nearest(name_or_path, names)} (there: {', '.join(names)}; or a .yaml file's path)"
    raise ConfigError([f"no {kind} is called {name_or_path!r}{choice}"])


def _with_bases(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's data over that of the profile it extends (a path is relative to the file)."""
    if path.resolve() in seen:
        chain = " → ".join(p.name for p in (*seen, path))
        raise ConfigError([f"extends goes in a circle: {chain}"])
    data = read_yaml(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    beside = path.parent / str(base)
    file = beside if beside.is_file() else named_file(PROFILES, "profile", str(base))
    below = _with_bases(file, (*seen, path.resolve()))
    below.pop("profile", None)  # a derived profile is another profile
    return layered(below, data)


def _with_defaults_extended(
    model: type[Settings], data: Mapping[str, Any], above: str = ""
) -> dict[str, Any]:
    """The data with every `name+` added to its default. Raises ConfigError: empty means all."""
    settled = dict[str, Any]()
    for key, value in data.items():
        name = key.removesuffix("+")
        field = model.model_fields.get(name)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        group = next((k for k in kinds if isinstance(k, type) and issubclass(k, Settings)), None)
        if field and name != key:
            if not field.default and model is not CollectSettings:
                none = "nothing to add to: the profile names none, which means all of them"
                raise ConfigError([f"{above}{key}: {none}; write {name} to take these alone"])
            default = [entry.model_dump(exclude_unset=True) for entry in field.default]
            value = [*default, *settled.pop(name, []), *value]
        elif group and isinstance(value, dict):
            value = _with_defaults_extended(group, value, f"{above}{key}.")
        settled[name if field else key] = value
    return settled


def run_name(settings: Pipeline, profile: Pipeline | None = None) -> str:
    """`sft.learning_rate=1e-4 · tiny-seed0`: the first few differences from the profile come first,
    for lists of runs cut names at their end."""
    name = f"{settings.profile}-seed{settings.seed}"
    changed = first_few([f"{n}={value}" for n, value in differences(settings, profile)])
    return f"{', '.join(changed)} · {name}" if changed else name


def differences(settings: Pipeline, profile: Pipeline | None = None) -> list[tuple[str, str]]:
    """Dotted names of the settings with a meaning that differ, with the new value, in order; an
    entry of a list that is left out is null as a whole. `profile` is by default the shipped one of
    that name, if any; profile and seed, which are in every name, do not count."""
    if profile is None and settings.profile in profiles():
        profile = load_profile(settings.profile)
    now, before = (flat(meaning(s)) for s in (settings, profile or settings))
    groups = {part for name in now for part in accumulate(name.split("."), "{}.{}".format)}
    changed = dict[str, str]()
    for name in dict.fromkeys((*now, *before)):
        stage, _, constant = name.partition(".loss.")
        loss = str(now.get(f"{stage}.loss.name"))
        if constant and loss != before.get(f"{stage}.loss.name"):  # beside that loss's defaults
            changed[f"{stage}.loss"] = loss
            if constant in CONSTANTS[loss] and now[name] != getattr(LOSSES[loss](), constant):
                changed[name] = short(now[name])
        elif now.get(name) != before.get(name) and name not in ("profile", "seed"):
            parts = accumulate(name.split("."), "{}.{}".format)
            left_out = next((part for part in parts if part not in groups), name)  # a whole entry
            changed[left_out] = short(now.get(name))
    return list(changed.items())


@lru_cache
def _as_json(text: str) -> str:
    """A YAML text whose aliases are copies and whose dates are texts."""
    return json.dumps(YAML(typ="safe", pure=True).load(text), default=str)


def _parsed(text: str, where: str) -> Any:
    """The value of a YAML text. Raises ConfigError."""
    try:
        return json.loads(_as_json(text))
    except (YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and mark.line else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError([f"{where}{line}: {problem}"]) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError with file and line."""
    try:
        data = _parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    if not isinstance(data, dict | None):
        raise ConfigError([f"{path}: a profile is a mapping of keys, this is {data!r:.60}"])
    return data or {}


def overridden(data: dict[str, Any], text: str) -> dict[str, Any]:
    """`data`, changed as `a.b.0.c=value` says, value in YAML; raises ConfigError with one line. A
    list entry is named by index, `name` or `use` (`collect.sources.deepscaler.limit=5`)."""
    path, equals, value_text = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError([f"{text}: write key.key=value, as sft.epochs=2"])
    value = _parsed(value_text, f"{'.'.join(keys)}: {value_text[:60]!r} is no YAML")
    return _replaced(data, keys, value)


def _replaced(node: Any, keys: list[str], value: Any, above: str = "") -> Any:
    """`node`, a group or list, with the value where the keys lead."""
    if not keys:
        return value
    key, *rest = keys
    path = f"{above}.{key}" if above else key
    if isinstance(node, list):
        entries = [entry if isinstance(entry, dict) else {} for entry in node]
        names = [str(entry.get("name") or entry.get("use", "")) for entry in entries]
        labels = [n or str(i) for i, n in enumerate(names)]
        if key not in labels and key not in map(str, range(len(node))):
            entries = ", ".join(labels) or "none"
            raise ConfigError([f"{path}: no such entry{nearest(key, names)} (there: {entries})"])
        i = labels.index(key) if key in labels else int(key)
        return [*node[:i], _replaced(node[i], rest, value, path), *node[i + 1 :]]
    group = group_of(node)
    if key.endswith("+") and not rest:
        return layered(group, {key: value})
    return {**group, key: _replaced(group.get(key), rest, value, path)}
