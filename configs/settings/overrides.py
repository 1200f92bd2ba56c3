"""Settings as plain YAML data: reading, layering, and `--set a.b=c`. Validation comes later."""

import json
from pathlib import Path
from typing import Any

import yaml

from configs.settings.explain import ConfigError, dotted, nearest

MOST_CHARACTERS = 1 << 20
MOST_VALUES = 20_000
"""What a profile may hold, each alias counted with all that it stands for. The shipped ones hold
some hundreds."""
MERGE = "tag:yaml.org,2002:merge"


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
        return json.loads(json.dumps(loader.construct_document(node), default=str))
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
        raise ConfigError([f"{path}: a profile is a mapping of keys, this is {data!r:.60}"])
    return data


def layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`: groups merge key by key; lists and values are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = layered(old, value)
        merged[key] = value
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
    known = [name for name in names if name]
    which = (
        f" (0 to {len(entries) - 1} or {', '.join(known)})" if entries else "; the list is empty"
    )
    raise ConfigError([f"{above}.{key}: no such entry{nearest(key, known)}{which}"])
