"""What crosses between a program and its tests: JSON that keeps Python's types, and nothing else.

Runs inside the sandbox, on both ends of the channel. A value that is no plain data stays where it
is; the other end gets a number for it.
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

from eval import zygote_nodes

LONGEST_ITERATOR = 1 << 20
_BUILTINS = (type, types.BuiltinFunctionType)
_OF_DATA = "int float bool complex str bytes bytearray list tuple dict set frozenset object"
_TYPES_OF_DATA = frozenset(_OF_DATA.split())
_KINDS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}


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
    if isinstance(value, int):
        return int.__int__(value)  # of a subclass only the number
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value) is decimal.Decimal:
        return {"decimal": str(value)}
    if type(value) is fractions.Fraction:
        return {"fraction": [value.numerator, value.denominator]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list | range | map | filter | zip | types.GeneratorType):
        return [again(v) for v in itertools.islice(value, LONGEST_ITERATOR)]
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return {name: [again(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[again(k), again(v)] for k, v in value.items()]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return again(value.tolist())
    crosses = functions or (isinstance(value, type) and value.__name__ in _TYPES_OF_DATA)
    if crosses and isinstance(value, _BUILTINS) and value.__module__ == "builtins":
        return {"builtin": value.__name__}
    if nodes and (found := zygote_nodes.node_values(value)):
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
    if kind == "builtin":
        return _builtin(content, functions)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    if kind == "decimal":
        return decimal.Decimal(content)
    if kind == "fraction":
        return fractions.Fraction(*content)
    if kind == "dict":
        return dict(again(content))
    values = again(content)
    if kind in _KINDS:
        return _KINDS[kind](values)
    if classes is None:
        raise TypeError(f"nobody asked for a {kind}")
    if kind == "list_node":
        return zygote_nodes.list_node(values, classes["ListNode"])
    return zygote_nodes.tree_node(values, classes["TreeNode"])


def _builtin(name: str, functions: bool) -> Any:
    """Types of data; with `functions` all that is builtin, but `exit`, which is neither."""
    found = getattr(builtins, name, None)
    if isinstance(found, _BUILTINS) and (functions or name in _TYPES_OF_DATA):
        return found
    raise TypeError(f"{name} does not cross")


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
