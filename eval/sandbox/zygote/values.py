"""What crosses between a program and its tests, on both ends in the sandbox: JSON that keeps
Python's types. A value that is no plain data stays where it is; the other end gets a number for it.

LeetCode's linked lists and binary trees cross as their values. Programs use `ListNode` and
`TreeNode` without defining them; tests build them with `list_node([…])` and `tree_node([…])` (level
order, None for a missing child) and compare with `is_same_list` and `is_same_tree`.
"""

import builtins
import collections
import datetime
import decimal
import fractions
import functools
import importlib
import itertools
import json
import os
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

LONGEST_ITERATOR = 1 << 20
_MOST_NODES = 1 << 20
_NODES = {"list_node": "ListNode", "tree_node": "TreeNode"}
_SIDES = {"list_node": ("next",), "tree_node": ("left", "right")}
_BUILTINS = (type, types.BuiltinFunctionType)
_JSON_SCALARS = frozenset({type(None), bool, int, float, str})
_SCALARS: tuple[tuple[type, Callable[[Any], Any]], ...]
_SCALARS = ((int, int.__int__), (float, float.__float__), (str, str.__str__))
"""Of their subclasses, only the value crosses."""


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:  # noqa: A002 (LeetCode's name)
        self.val = val
        self.next = next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val = val
        self.left = left
        self.right = right


def _build(form: str, values: Any, node: Any) -> Any:
    """The first of the `node` objects that hold these values in level order; None for none."""
    nodes: list[Any] = []
    places = collections.deque[tuple[Any, str]]()  # where the next values belong
    for value in values:
        parent, side = places.popleft() if nodes else (None, "")
        if value is not None or form == "list_node":
            nodes.append(node(value))
            places += [(nodes[-1], side) for side in _SIDES[form]]
            if parent is not None:
                setattr(parent, side, nodes[-1])
        if not places:
            break
    return nodes[0] if nodes else None


def node_values(value: Any) -> tuple[str, list[Any]] | None:
    """("list_node" or "tree_node", values) of a node, else None. Raises ValueError for a circle."""
    form = next((f for f, name in _NODES.items() if name == type(value).__name__), "")
    if not form or not all(hasattr(value, name) for name in ("val", *_SIDES[form])):
        return None
    values, waiting = [], collections.deque([value])
    while waiting:
        node = waiting.popleft()
        if node is not None or form == "tree_node":
            values.append(None if node is None else node.val)
        if node is not None:
            waiting += [getattr(node, side) for side in _SIDES[form]]
        if len(values) > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES} nodes, or a circle of them")
    while form == "tree_node" and values[-1] is None:
        values.pop()
    return form, values


def _same(kind: type, one: Any, other: Any) -> bool:
    """Whether both are None or nodes of this kind with the same values."""
    if not all(node is None or isinstance(node, kind) for node in (one, other)):
        return False
    values = node_values(one)
    return one is other or (values is not None and values == node_values(other))


FOR_PROGRAMS = {"ListNode": ListNode, "TreeNode": TreeNode}
FOR_TESTS = {  # undefined names that tests may use; those that do get the two classes as well
    "list_node": functools.partial(_build, "list_node", node=ListNode),
    "tree_node": functools.partial(_build, "tree_node", node=TreeNode),
    "is_same_list": functools.partial(_same, ListNode),
    "is_same_tree": functools.partial(_same, TreeNode),
}

DATA_PREDICATES = {"startswith", "endswith", "all", "any", "equals"} | {
    name for kind in (str, set, float, decimal.Decimal) for name in dir(kind) if name[:2] == "is"
}
"""Questions of yes or no that plain data answers: another object in its place would say yes."""


@functools.cache
def _named_tuple(name: str, *fields: str) -> Callable[[list[Any]], tuple[Any, ...]]:
    is_data = DATA_PREDICATES.isdisjoint(fields)
    return collections.namedtuple(name, fields)._make if is_data else tuple


def _fields_of(value: Any) -> tuple[str, ...]:
    return getattr(value, "_fields", ()) if isinstance(value, tuple) else ()


def is_more_than_data(value: Any) -> bool:
    """Whether a list, a dict or the like has methods of its own: `class LRUCache(OrderedDict)`."""
    own = (k for k in type(value).__mro__ if k.__module__ not in ("builtins", "collections"))
    members = (member for kind in own for member in vars(kind).items())
    return isinstance(value, list | dict | set | collections.deque) and any(
        isinstance(member, types.FunctionType) and name[:1] != "_" for name, member in members
    )


_LISTS = list | range | Iterator | KeysView | ValuesView | ItemsView
_FORMS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "complex": (complex, lambda v: [v.real, v.imag], lambda parts: complex(*parts)),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (fractions.Fraction, str, fractions.Fraction),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds],
                  lambda parts: datetime.timedelta(*parts)),
    "bytes": (bytes | bytearray, lambda v: bytes(v).hex(), bytes.fromhex),
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "deque": (collections.deque, list, collections.deque),
    "dict": (dict, lambda v: list(map(list, v.items())), dict),
}  # fmt: skip
"""How a type that JSON lacks is written, in parts that cross themselves, and read."""


def pack(value: Any, keep: Callable[[Any], Any], functions: bool = False) -> Any:
    """Plain data as JSON with its types; of any other object the name that `keep` gives it. With
    `functions`, for what the tests send, builtin functions and types cross by name: an `eval` that
    a program returns must not be called where its tests run."""
    if type(value) in _JSON_SCALARS:
        return value
    if type(value) is list:
        plain = _JSON_SCALARS.issuperset(map(type, value))
        return value if plain else [pack(v, keep, functions) for v in value]
    again = functools.partial(pack, keep=keep, functions=functions)
    for kind, plain in _SCALARS:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, _LISTS):
        sized = isinstance(value, list)
        return [again(v) for v in (value if sized else itertools.islice(value, LONGEST_ITERATOR))]
    if fields := _fields_of(value):
        return {"named": [[type(value).__name__, *fields], again(list(value))]}
    for name, (form, written, _) in _FORMS.items():
        if isinstance(value, form):
            return {name: again(written(value))}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        plain_values = again(value.tolist())  # of a program a list: tests may compare it with one
        return {"array": plain_values} if functions and value.shape else plain_values
    if functions and isinstance(value, _BUILTINS) and value.__module__ == "builtins":
        return {"builtin": value.__name__}
    if node := node_values(value):
        return {node[0]: again(node[1])}
    return {"object": keep(value)}


def unpack(
    value: Any, object_of: Callable[[Any], Any], classes: dict[str, Any], functions: bool = False
) -> Any:
    """The inverse of `pack`; kept objects become `object_of(name)`. KeyError for all else."""
    if type(value) is list:
        plain = _JSON_SCALARS.issuperset(map(type, value))
        return value if plain else [unpack(v, object_of, classes, functions) for v in value]
    if type(value) is not dict:
        return value
    again = functools.partial(unpack, object_of=object_of, classes=classes, functions=functions)
    ((kind, content),) = value.items()
    if kind == "object":
        return object_of(content)
    if kind == "builtin" and functions:
        return getattr(builtins, content)
    if kind == "array" and functions:
        return importlib.import_module("numpy").array(again(content))
    if kind == "named":
        return _named_tuple(*content[0])(again(content[1]))
    if kind in _FORMS:
        return _FORMS[kind][2](again(content))
    return _build(kind, again(content), classes[_NODES[kind]])


encode, _decode = json.JSONEncoder().encode, json.JSONDecoder().raw_decode


def decode(data: bytes) -> Any:
    """The inverse of `encode`; `json.loads` would first look for an encoding and for spaces."""
    return _decode(data.decode())[0]


def write(data: bytes) -> None:
    """Write all of it to descriptor 3. Files of Python's cost more than most calls do."""
    while data:
        data = data[os.write(3, data) :]


class Channel:
    """One end of the socket on descriptor 3: JSON lines. A list asks, a dict replies."""

    rest = b""  # read, and of the next line
    used = False

    def ask(self, question: list[Any], answer: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """The reply to `question`. Before it the other end may ask too, which `answer` replies."""
        self.used = True
        self.send(question)
        while isinstance(message := self.receive(), list):
            self.send(answer(*message))
        return message

    def send(self, message: Any) -> None:
        write(encode(message).encode() + b"\n")

    def receive(self) -> Any:
        """Raises EOFError when the other end is closed."""
        parts = [self.rest]
        while b"\n" not in parts[-1]:  # as in `write`, no file
            parts.append(os.read(3, 1 << 13))
            if not parts[-1]:
                raise EOFError
        line, _, self.rest = b"".join(parts).partition(b"\n")
        return decode(line)
