"""Profiles: files of configs/profiles, what `--set` changes of them, and how a run is called."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from configs.settings.base import Settings, fields_with_meaning, layered
from configs.settings.explain import ConfigError, dotted, explain, nearest
from configs.settings.pipeline import Pipeline

__all__ = ["ConfigError", "load_group", "load_profile", "profiles"]

FOLDER = Path(__file__).parent / "profiles"
Group = TypeVar("Group", bound=Settings)
MOST_SHOWN = 3
LONGEST_VALUE = 24
MOST_VALUES = 20_000
"""What a profile may hold, each alias counted with all that it stands for. The shipped ones hold
some hundreds."""
MERGE = "tag:yaml.org,2002:merge"


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
        raise ConfigError(problems)
    return pipeline


def load_group(
    model: type[Group], overrides: Sequence[str], given: Mapping[str, Any] = {}
) -> Group:
    """One settings class from what is given and overrides; raises ConfigError as load_profile."""
    data = dict(given)
    for text in overrides:
        apply_override(data, text)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, model)) from error


def _find(name_or_path: str) -> Path:
    path, known = Path(name_or_path).expanduser(), profiles()
    if name_or_path in known:
        return FOLDER / f"{name_or_path}.yaml"
    if path.suffix not in (".yaml", ".yml"):
        meant = f"{nearest(name_or_path, known)} (profiles: {', '.join(known)}"
        raise ConfigError(
            [f"no profile is called {name_or_path!r}{meant}; or give the path of a .yaml file)"]
        )
    if not os.path.isfile(path):
        raise ConfigError([f"{name_or_path}: no such file"])
    return path


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
    return [d for d in _changes(settings, base, "") if d[0] not in ("profile", "seed")]


def _changes(now: Any, before: Any, path: str) -> list[tuple[str, str]]:
    if now == before:
        return []
    if isinstance(now, BaseModel) and type(now) is type(before):
        pairs = [(n, getattr(now, n), getattr(before, n)) for n in fields_with_meaning(now)]
    elif isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        both = enumerate(zip(now, before, strict=True))
        pairs = [(getattr(new, "name", str(i)), new, old) for i, (new, old) in both]
    else:
        return [(path, _short(now))]
    inner = f"{path}." if path else ""
    return [found for n, new, old in pairs for found in _changes(new, old, inner + n)]


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


class _NoDuplicateKeys(yaml.SafeLoader):
    """PyYAML lets the last of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:  # `<<: *anchor` may repeat; keys beside it win
                continue
            key = repr(self.construct_object(key_node, deep=True))
            if key in seen:
                problem = f"the key {key} stands here twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _plain(text: str) -> Any:
    """The value of a YAML text as JSON has it: an alias is a copy, a date is its text.

    Raises yaml.YAMLError, whatever is wrong with it.
    """
    try:
        loader = _NoDuplicateKeys(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _values_in(node, {}) > MOST_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"over {MOST_VALUES:,} values, with all that its aliases stand for",
                problem_mark=node.start_mark,
            )
        return json.loads(json.dumps(loader.construct_document(node), default=str))
    except RecursionError as error:
        raise yaml.YAMLError("too deeply nested") from error
    except (ValueError, TypeError, AttributeError) as error:  # PyYAML on 2024-99-99, `!!int x`
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _values_in(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """How many values a node stands for; infinitely many if it holds itself."""
    if node not in known:
        known[node] = float("inf")
        inner: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in inner for part in pair]
        known[node] = 1 + sum(_values_in(part, known) for part in inner)
    return known[node]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError with file and line."""
    try:
        data = _plain(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([f"{where}: {getattr(error, 'problem', None) or error}"]) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: a profile is a mapping of keys, this is {data!r:.60}"])
    return data


def apply_override(data: dict[str, Any], text: str) -> None:
    """Change `data` in place as `a.b.0.c=value` says; raises ConfigError with one line.

    A list entry is named by its index, `name` or `use` (`collect.sources.deepscaler.limit=5`).
    The value is YAML: `[a, b]`, `true`, `1e-6`, `null`.
    """
    path, equals, value_text = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError([f"--set {text}: write --set key.key=value"])
    try:
        value = _plain(value_text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError([f"{dotted(keys)}: {value_text[:60]!r} is no YAML: {problem}"]) from error
    node: Any = data
    for depth, key in enumerate(keys):
        place = _place(node, key, dotted(keys[:depth]))
        if depth + 1 == len(keys):
            node[place] = value
        elif isinstance(node, dict) and node.get(place) is None:
            node[place] = {}
        node = node[place]


def _place(node: Any, key: str, above: str) -> str | int:
    """Where in a group or list the key lies."""
    if isinstance(node, dict) and not key.isdecimal():  # no setting has a number as its name
        return key
    if not isinstance(node, (dict, list)):
        raise ConfigError([f"{above}: the value {node!r}, so there is no {above}.{key}"])
    entries = node if isinstance(node, list) else []
    names = [str(e.get("name") or e.get("use", "")) if isinstance(e, dict) else "" for e in entries]
    if key in names:
        return names.index(key)
    if key.isdecimal() and len(key) < 10 and int(key) < len(entries):
        return int(key)
    known = ", ".join([*filter(None, names), f"0 to {len(entries) - 1}"]) if entries else "none"
    raise ConfigError([f"{above}.{key}: no such entry{nearest(key, names)} (there: {known})"])
