"""Settings as plain YAML data: reading, layering, and `--set a.b=c`. Validation comes later."""

from pathlib import Path
from typing import Any

import yaml

from configs.explain import ConfigError, dotted, nearest

_KINDS = {dict: "a group of settings", list: "a list"}
MOST_CHARACTERS = 1 << 20
MOST_VALUES = 20_000
"""What a profile may hold, each alias counted with all that it stands for. The shipped ones hold
some hundreds."""


MERGE = "tag:yaml.org,2002:merge"


class _NoDuplicateKeys(yaml.SafeLoader):
    """PyYAML lets the last of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [
            self.construct_object(key, deep=True)
            for key, _ in node.value
            if key.tag != MERGE  # `<<: *anchor` may repeat; keys beside it win
        ]
        seen: set[str] = set()
        twice = [key for key in keys if repr(key) in seen or seen.add(repr(key))]
        if twice:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice[0]!r} stands here twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _plain(text: str) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError, whatever is wrong with it."""
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"{len(text):,} characters; settings have {MOST_CHARACTERS:,} at most")
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
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("too deeply nested") from error
    except (ValueError, TypeError, AttributeError) as error:  # PyYAML on 2024-99-99, `!!int x`
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _values_in(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """How many values a node stands for; infinitely many if it holds itself."""
    if node not in known:
        known[node] = float("inf")
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        known[node] = 1 + sum(_values_in(part, known) for part in inner)
    return known[node]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError with file and line."""
    try:
        with path.open(encoding="utf-8") as file:
            data = _plain(file.read(MOST_CHARACTERS + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([f"{where}: {getattr(error, 'problem', None) or error}"]) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: a profile is a mapping of keys, this is {_kind(data)}"])
    return data


def layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`: groups merge key by key; lists and values are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = layered(old, value) if both else value  # type: ignore[arg-type]
    return merged


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
    _assign(data, keys, value)


def _assign(data: dict[str, Any], keys: list[str], value: Any) -> None:
    node: Any = data
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(node, list):
            place: Any = _index(node, key, keys[:depth])
        elif isinstance(node, dict) and key.isdecimal():  # no setting has such a name
            place = _index([], key, keys[:depth])
        elif isinstance(node, dict):
            place = key
        else:
            raise ConfigError(
                [f"{dotted(keys[:depth])}: {_kind(node)}, so there is no {dotted(keys)}"]
            )
        if last:
            node[place] = value
        elif isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        node = node[place]


def _index(entries: list[Any], key: str, parents: list[str]) -> int:
    names = [str(e.get("name") or e.get("use", "")) if isinstance(e, dict) else "" for e in entries]
    if key in names:
        return names.index(key)
    if key.isdecimal() and len(key) < 10 and int(key) < len(entries):
        return int(key)
    here = f"{dotted(parents)}.{key}: no such entry"
    if not entries:
        raise ConfigError([f"{here}; the list is empty"])
    known = [name for name in names if name]
    say = f" or {', '.join(known)}" if known else ""
    raise ConfigError([f"{here}{nearest(key, known)} (0 to {len(entries) - 1}{say})"])


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), f"the value {value!r}")
