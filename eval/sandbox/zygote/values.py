"""What crosses between a program and its tests: JSON that keeps Python's types, and nothing else.

Runs inside the sandbox, on both ends of the channel. A value that is no plain data stays where it
is; the other end gets a number for it.

LeetCode's linked lists and binary trees cross as their values, so that a comparison never meets an
object of the program. Programs use `ListNode` and `TreeNode` without defining them; tests build
them with `list_node([…])` and `tree_node([…])` (level order, None for a missing child) and compare
with `is_same_list` and `is_same_tree`.
"""

import builtins
import collections
import decimal
import fractions
import functools
import itertools
import json
import socket
import struct
import types
from collections.abc import Callable
from typing import Any

LONGEST_ITERATOR = 1 << 20
_MOST_NODES = 1 << 20
_ATTRIBUTES = {"ListNode": ("val", "next"), "TreeNode": ("val", "left", "right")}
_BUILTINS = (type, types.BuiltinFunctionType)
_SCALARS: tuple[tuple[type, Callable[[Any], Any]], ...]
_SCALARS = ((int, int.__int__), (float, float.__float__), (str, str.__str__))
"""Of their subclasses, only the value crosses."""
_AS_JSON: dict[str, tuple[type | types.UnionType, Callable[..., Any], Callable[..., Any]]] = {
    "complex": (complex, lambda v: [v.real, v.imag], lambda parts: complex(*parts)),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (
        fractions.Fraction,
        lambda v: [v.numerator, v.denominator],
        lambda parts: fractions.Fraction(*parts),
    ),
    "bytes": (bytes | bytearray, lambda v: bytes(v).hex(), bytes.fromhex),
}
"""How a type is written and read."""
_OF_DATA = "int float bool complex str bytes bytearray list tuple dict set frozenset object"
_TYPES_OF_DATA = frozenset(_OF_DATA.split())
_KINDS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:  # noqa: A002 (LeetCode's name)
        self.val = val
        self.next = next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val = val
        self.left = left
        self.right = right


def list_node(values: Any, node: Any = ListNode) -> Any:
    """The first of the linked nodes that hold `values`; None for none."""
    head = None
    for value in reversed(list(values)):
        following, head = head, node(value)
        head.next = following
    return head


def tree_node(values: Any, node: Any = TreeNode) -> Any:
    """The root of the tree with these values in level order."""
    values = list(values)
    if not values or values[0] is None:
        return None
    root = node(values[0])
    parents = collections.deque([root])
    children = iter(values[1:])
    while parents:
        parent = parents.popleft()
        for side in ("left", "right"):
            value = next(children, None)
            if value is not None:
                setattr(parent, side, child := node(value))
                parents.append(child)
    return root


def node_values(value: Any) -> tuple[str, list[Any]] | None:
    """("list_node" or "tree_node", values) of a node of either kind; None for anything else.

    Raises ValueError where the nodes form a circle.
    """
    kind = type(value).__name__
    if kind not in _ATTRIBUTES or not all(hasattr(value, name) for name in _ATTRIBUTES[kind]):
        return None
    values, waiting = [], collections.deque([value])
    while waiting:
        node = waiting.popleft()
        if node is not None or kind == "TreeNode":
            values.append(None if node is None else node.val)
        if node is not None:
            waiting += [getattr(node, name) for name in _ATTRIBUTES[kind][1:]]
        if len(values) > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES} nodes, or a circle of them")
    while kind == "TreeNode" and values[-1] is None:
        values.pop()
    return ("list_node" if kind == "ListNode" else "tree_node"), values


def _same(kind: type, one: Any, other: Any) -> bool:
    """Whether both are None or nodes of this kind with the same values."""
    if not all(node is None or isinstance(node, kind) for node in (one, other)):
        return False
    values = node_values(one)
    return one is other or (values is not None and values == node_values(other))


FOR_PROGRAMS = {"ListNode": ListNode, "TreeNode": TreeNode}
FOR_TESTS = {
    "list_node": list_node,
    "tree_node": tree_node,
    "is_same_list": functools.partial(_same, ListNode),
    "is_same_tree": functools.partial(_same, TreeNode),
}
"""What tests may use without defining it; those that do get the two classes as well."""


def pack(
    value: Any,
    keep: Callable[[Any], int | str],
    nodes: bool = False,
    functions: bool = False,
) -> Any:
    """Plain data as JSON with its types; of any other object the name that `keep` gives it.

    With `nodes`, LeetCode's lists and trees are plain data too. With `functions`, builtin ones and
    all builtin types cross by name, which is for what the tests send: a program that returns `eval`
    must not have it called where its tests run.
    """
    again = functools.partial(pack, keep=keep, nodes=nodes, functions=functions)
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _SCALARS:
        if isinstance(value, kind):
            return plain(value)
    for name, (kind, written, _) in _AS_JSON.items():
        if isinstance(value, kind):
            return {name: written(value)}
    if isinstance(value, list | range | map | filter | zip | types.GeneratorType):
        return [again(v) for v in itertools.islice(value, LONGEST_ITERATOR)]
    for name, collection in _KINDS.items():
        if isinstance(value, collection):
            return {name: [again(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[again(k), again(v)] for k, v in value.items()]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return again(value.tolist())
    crosses = functions or (isinstance(value, type) and value.__name__ in _TYPES_OF_DATA)
    if crosses and isinstance(value, _BUILTINS) and value.__module__ == "builtins":
        return {"builtin": value.__name__}
    if nodes and (found := node_values(value)):
        return {found[0]: [again(v) for v in found[1]]}
    return {"object": keep(value)}


def unpack(
    value: Any,
    object_of: Callable[[Any], Any],
    classes: dict[str, Any] | None,
    functions: bool = False,
) -> Any:
    """The inverse of `pack`; a kept object becomes `object_of(name)`, nodes are of `classes`.

    Raises TypeError for what was not asked for: `functions`, and nodes where `classes` is None.
    """
    again = functools.partial(unpack, object_of=object_of, classes=classes, functions=functions)
    if isinstance(value, list):
        return list(map(again, value))
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "object":
        return object_of(content)
    if kind == "builtin":  # types of data; with `functions` all that is builtin, but no `exit`
        found = getattr(builtins, content, None)
        if isinstance(found, _BUILTINS) and (functions or content in _TYPES_OF_DATA):
            return found
        raise TypeError(f"{content} does not cross")
    if kind in _AS_JSON:
        return _AS_JSON[kind][2](content)
    if kind == "dict":
        return dict(again(content))
    values = again(content)
    if kind in _KINDS:
        return _KINDS[kind](values)
    if classes is None:
        raise TypeError(f"nobody asked for a {kind}")
    if kind == "list_node":
        return list_node(values, classes["ListNode"])
    return tree_node(values, classes["TreeNode"])


def send(channel: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("<Q", len(data)) + data)


def receive(channel: socket.socket) -> Any:
    (length,) = struct.unpack("<Q", _read(channel, 8))
    return json.loads(_read(channel, length))


def _read(channel: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = channel.recv(min(length - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
