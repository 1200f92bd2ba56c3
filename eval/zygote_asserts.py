"""Assertions about a program that may lie: the tests run in one process, the program in another.

Runs inside the sandbox. The program's process serves calls (`serve`), the tests' process makes them
(`run_tests`) through proxies, and only plain data crosses. So an assertion is evaluated where the
program has no code: `sys.exit(0)`, an always-true `__eq__` or a patched builtin decide nothing.
"""

import builtins
import collections
import importlib
import itertools
import json
import socket
import struct
import symtable
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from eval.zygote_roles import Process, function_of

PROGRAM_RAISED = 3  # exit status of the tests' process when the program, not an assertion, failed
_KINDS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_TRUSTED_MODULES = frozenset({"collections", "itertools", "json", "math", "random", "re", "string"})
_LONGEST_ITERATOR = 1 << 20


class ProgramFailed(Exception):
    """The program under test raised something that no test can name, or went away."""


def pack(value: Any, kept: list[Any]) -> Any:
    """Plain data as JSON with its types; any other object is kept and becomes a number."""
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
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list | range | map | filter | zip | types.GeneratorType):
        return [pack(v, kept) for v in itertools.islice(value, _LONGEST_ITERATOR)]
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return {name: [pack(v, kept) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(k, kept), pack(v, kept)] for k, v in value.items()]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return pack(value.tolist(), kept)
    kept.append(value)
    return {"object": len(kept) - 1}


def unpack(value: Any, object_of: Callable[[int], Any]) -> Any:
    """The inverse of `pack`; a kept object becomes `object_of(number)`."""
    if isinstance(value, list):
        return [unpack(v, object_of) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "object":
        return object_of(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {unpack(k, object_of): unpack(v, object_of) for k, v in content}
    return _KINDS[kind](unpack(v, object_of) for v in content)


def _send(channel: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("<Q", len(data)) + data)


def _receive(channel: socket.socket) -> Any:
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


def serve(process: Process, code: types.CodeType, candidate: str | None) -> None:
    """Role `serve`: run the program, then answer calls on descriptor 3 until the tests end."""
    channel = socket.socket(fileno=3)
    exec(code, process.globals)
    kept: list[Any] = []
    while True:
        try:
            request = _receive(channel)
        except EOFError:
            return
        try:
            target, attribute = request["target"], request["attribute"]
            if isinstance(target, str):
                if target == "candidate":
                    target = candidate or _candidate(process.globals)
                target = function_of(process, target)
            else:
                target = kept[target]
            result = getattr(target, attribute) if attribute else target
            arguments = [unpack(a, kept.__getitem__) for a in request["args"]]
            keywords = {k: unpack(v, kept.__getitem__) for k, v in request["keywords"].items()}
            if request["call"]:
                result = result(*arguments, **keywords)
            reply = {"result": pack(result, kept), "args": [pack(a, kept) for a in arguments]}
        except Exception as error:
            traceback.print_exc(limit=-3)
            known = type(error) if type(error).__module__ == "builtins" else RuntimeError
            reply = {"error": known.__name__, "message": str(error)[:500]}
        _send(channel, reply)


def _candidate(names: dict[str, Any]) -> str:
    """What `candidate` means when the suite does not say: the last function the program defines."""
    solution = names.get("Solution")
    defined = vars(solution) if isinstance(solution, type) else names
    own = [n for n, f in defined.items() if isinstance(f, types.FunctionType) and n[:1] != "_"]
    here = [n for n in own if defined[n].__module__ == names["__name__"]]
    if not here:
        raise NameError("the program defines no function")
    return here[-1]


class Remote:
    """A name or an object of the program, used from the tests' process."""

    def __init__(self, channel: socket.socket, target: str | int) -> None:
        self.__dict__["_remote"] = (channel, target)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._request(None, True, args, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._request(name, False, (), {})

    def _request(self, attribute: str | None, is_call: bool, args: Any, keywords: Any) -> Any:
        channel, target = self.__dict__["_remote"]
        message = {"target": target, "attribute": attribute, "call": is_call}
        message["args"] = [_pack_argument(a) for a in args]
        message["keywords"] = {k: _pack_argument(v) for k, v in keywords.items()}
        try:
            _send(channel, message)
            reply = _receive(channel)
        except (EOFError, OSError) as gone:
            raise ProgramFailed("the program ended before it answered the test") from gone
        if "error" in reply:
            raise _exception(reply["error"])(reply["message"]) from ProgramFailed()
        for argument, after in zip(args, reply["args"], strict=False):
            _update(argument, unpack(after, lambda number: Remote(channel, number)))
        return unpack(reply["result"], lambda number: Remote(channel, number))


def _exception(name: str) -> type[Exception]:
    """The built-in exception that the program raised: tests may expect it."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
        return kind
    return ProgramFailed


def _pack_argument(value: Any) -> Any:
    if isinstance(value, Remote):
        return {"object": value.__dict__["_remote"][1]}
    return pack(value, [])


def _update(argument: Any, after: Any) -> None:
    """Programs may change a list or a dict in place; the tests see it."""
    if isinstance(argument, list) and isinstance(after, list):
        argument[:] = after
    elif isinstance(argument, dict) and isinstance(after, dict):
        argument.clear()
        argument.update(after)


def run_tests(process: Process, source: str, function: str | None) -> None:
    """Role `asserts`: run the test code; names it does not define belong to the program.

    A function `check` that is defined and never called is called with `candidate`, as HumanEval's
    tests expect.
    """
    channel = socket.socket(fileno=3)
    free, functions = _names(source)
    if "check" in functions:
        source += "\ncheck(candidate)\n"
        free.add("candidate")
    names: dict[str, Any] = {}
    for name in free:
        if name == function or not (hasattr(builtins, name) or name in _TRUSTED_MODULES):
            names[name] = Remote(channel, name)
        elif name in _TRUSTED_MODULES:
            names[name] = importlib.import_module(name)
    names.update(__name__="tests", __builtins__=builtins)
    try:
        exec(compile(source, "tests.py", "exec", dont_inherit=True), names)
    except Exception as error:
        if not isinstance(error, ProgramFailed) and not isinstance(error.__cause__, ProgramFailed):
            raise
        kind = "" if isinstance(error, ProgramFailed) else f"{type(error).__name__}: "
        sys.stderr.write(f"{kind}{error}".replace("\n", " ") + "\n")
        raise SystemExit(PROGRAM_RAISED) from None


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names that the test code uses and does not define; functions it defines and does not use."""
    top = symtable.symtable(source, "tests.py", "exec")
    used, scopes = set(), [top]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is top or symbol.is_global()):
                used.add(symbol.get_name())
    own = {s.get_name(): s for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    functions = {name for name, symbol in own.items() if symbol.is_namespace()}
    return used - set(own), functions - used
