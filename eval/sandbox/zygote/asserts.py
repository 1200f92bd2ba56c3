"""Assertions about a program that may lie: the tests run in one process, the program in another.

Runs inside the sandbox. The program's process serves calls (`serve`), the tests' process makes them
(`run_tests`) through proxies, and only plain data crosses. So an assertion is evaluated where the
program has no code: `sys.exit(0)`, an always-true `__eq__` or a patched builtin decide nothing.
What the tests compare with stays where they are: an object of the program is read (its length, an
item, its elements, its text), but an operator never puts it and plain data together.
"""

import ast
import builtins
import collections
import importlib
import itertools
import math
import operator
import socket
import symtable
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from eval.sandbox.zygote import values
from eval.sandbox.zygote.roles import Process, call_with, function_of

PROGRAM_RAISED = 3  # exit status of the tests' process when the program, not an assertion, failed
CANNOT_CROSS = 4  # … when the tests hand over what only exists in their own process
_READY = "ready"  # the program's process is isolated and about to run the program
_TRUSTED_MODULES = frozenset(
    ["collections", "itertools", "json", "math", "random", "re", "string", "sys"]
)
_TRUSTED_NAMES = frozenset(["Counter", "OrderedDict", "defaultdict", "deque"])
"""Of `collections`, unless the program is asked for nothing else: then a class has that name."""
PROVIDED = _TRUSTED_MODULES | {*values.FOR_TESTS, *values.FOR_PROGRAMS, "inf"}
"""Names that test code may use without defining them."""


_OPERATIONS: dict[str, Callable[..., Any]]
_OPERATIONS = {"__len__": len, "__bool__": bool, "__str__": str, "__repr__": repr}
_OPERATIONS["__setattr__"] = setattr
_OPERATIONS["__iter__"] = lambda value: list(itertools.islice(value, values.LONGEST_ITERATOR))
_OF_ONE = "getitem setitem delitem neg abs"
_OF_TWO = "contains eq lt le gt ge add sub mul truediv mod"
_OPERATIONS |= {f"__{n}__": getattr(operator, n) for n in f"{_OF_ONE} {_OF_TWO}".split()}


class ProgramFailed(Exception):
    """The program under test raised something that no test can name, or went away."""


class CannotCross(Exception):
    """The tests pass on an object of their own, such as a function."""


def serve(process: Process, code: types.CodeType, candidate: str | None) -> None:
    """Role `serve`: run the program, then answer calls on descriptor 3 until the tests end."""
    channel = socket.socket(fileno=3)
    values.send(channel, _READY)
    process.globals.update(values.FOR_PROGRAMS)
    exec(code, process.globals)
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def object_of(name: Any) -> Any:
        if isinstance(name, int):
            return kept[name]
        if name == "candidate":
            name = candidate or _candidate(process.globals)
        return function_of(process, name)

    while True:
        try:
            request = values.receive(channel)
        except EOFError:
            return
        try:
            given = values.unpack(request["args"], object_of, process.globals, functions=True)
            result = _do(object_of(request["target"]), request, given)
            reply = values.pack([result, *given], keep, request["nodes"])
        except Exception as error:
            traceback.print_exc(limit=-3)
            known = type(error) if type(error).__module__ == "builtins" else RuntimeError
            reply = {"error": known.__name__, "message": str(error)[:500]}
        values.send(channel, reply)


def _do(target: Any, request: dict[str, Any], given: list[Any]) -> Any:
    """Call the target or an attribute of it, or read the attribute where nothing is called."""
    attribute, names = request["attribute"], request["names"]
    if attribute in _OPERATIONS:
        return _OPERATIONS[attribute](target, *given)
    result = getattr(target, attribute) if attribute else target
    return result if names is None else call_with(result, given, names)


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
    """A name or an object of the program, used from the tests' process.

    What two of the program's objects are to each other, it may say. With plain data there is no
    such thing: it would learn what the tests expect, and its own methods would say yes. So that
    raises AssertionError (a wrong value was returned), except that no object equals None.
    """

    def __init__(self, asserts: "Asserts", name: str | int) -> None:
        self.__dict__["_remote"] = (asserts, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return _ask(self, None, [*args, *keywords.values()], list(keywords))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _ask(self, attribute, [], None)

    def __eq__(self, other: Any) -> bool:
        return other is not None and bool(_between("__eq__")(self, other))

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, Remote):
            return bool(_operation("__contains__")(self, item))
        return item in _operation("__iter__")(self)

    __hash__ = object.__hash__


def _ask(remote: Remote, attribute: str | None, given: list[Any], names: list[str] | None) -> Any:
    asserts, name = remote.__dict__["_remote"]
    return asserts.request(name, attribute, given, names)


def _operation(attribute: str) -> Callable[..., Any]:
    def operate(remote: Remote, *args: Any) -> Any:
        result = _ask(remote, attribute, list(args), [])
        return iter(result) if attribute == "__iter__" else result

    return operate


def _between(attribute: str) -> Callable[..., Any]:
    def operate(remote: Remote, other: Any) -> Any:
        if not isinstance(other, Remote):
            raise AssertionError("the program returned an object where the tests need plain data")
        return _operation(attribute)(remote, other)

    return operate


for _name in _OPERATIONS.keys() - vars(Remote).keys():
    _made = _between if _name.strip("_") in _OF_TWO.split() else _operation
    setattr(Remote, _name, _made(_name))


class Asserts:
    """The tests' end of the channel. With `nodes`, LeetCode's lists and trees cross as values."""

    def __init__(self, channel: socket.socket, nodes: bool) -> None:
        self.channel = channel
        self.nodes = nodes

    def request(
        self, target: str | int, attribute: str | None, given: list[Any], names: list[str] | None
    ) -> Any:
        """Call the target, or its attribute; the last of `given` are keywords called `names`."""
        args = values.pack(given, self._name, self.nodes, functions=True)
        request = {"target": target, "attribute": attribute, "args": args, "names": names}
        try:
            values.send(self.channel, {**request, "nodes": self.nodes})
            reply = values.receive(self.channel)
        except (EOFError, OSError) as gone:
            raise ProgramFailed("the program ended before it answered the test") from gone
        if isinstance(reply, dict) and reply.keys() == {"error", "message"}:
            raise _exception(reply["error"])(reply["message"]) from ProgramFailed()
        classes = values.FOR_PROGRAMS if self.nodes else None
        try:
            result, *after = values.unpack(reply, lambda name: Remote(self, name), classes)
        except Exception as error:  # the program has the other end of the channel
            raise ProgramFailed(f"a reply of the program is none: {error}") from error
        for argument, changed in zip(given, after, strict=False):
            _update(argument, changed)
        return result

    def _name(self, value: Any) -> int | str:
        if isinstance(value, Remote):
            return value.__dict__["_remote"][1]
        raise CannotCross(f"a {type(value).__name__} of the tests cannot reach the program")


def _exception(name: str) -> type[Exception]:
    """The built-in exception that the program raised: tests may expect it.

    Not one that means something else where it arrives: StopIteration ends `all(map(…))` early.
    """
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return ProgramFailed
    return ProgramFailed if issubclass(kind, AssertionError | StopIteration) else kind


def _update(argument: Any, after: Any) -> None:
    """Programs may change a list, a dict, a set or nodes in place; the tests see it."""
    if type(argument) is not type(after):
        return
    if isinstance(argument, list):
        argument[:] = after
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(after)
    elif isinstance(argument, tuple(values.FOR_PROGRAMS.values())):
        vars(argument).update(vars(after))


def run_tests(process: Process, source: str, function: str | None) -> None:
    """Role `asserts`: run the test code; names it does not define belong to the program.

    A function `check` that is defined and never called is called with `candidate`, as HumanEval's
    tests expect.
    """
    channel = socket.socket(fileno=3)
    values.receive(channel)  # or tests that call nothing could end before the program is isolated
    free, functions = _names(source)
    if "check" in functions:
        source += "\ncheck(candidate)\n"
        free.add("candidate")
    function = function or _shadowed_builtin(source, free)
    nodes = bool(free & set(values.FOR_TESTS))
    given: dict[str, Any] = {"inf": math.inf}
    given |= {**values.FOR_TESTS, **values.FOR_PROGRAMS} if nodes else {}
    asserts = Asserts(channel, nodes)
    names: dict[str, Any] = {}
    trusted = PROVIDED | _TRUSTED_NAMES | vars(builtins).keys()
    of_program = free - trusted
    for name in free:
        if name == function:
            names[name] = Remote(asserts, name)
        elif name in given:
            names[name] = given[name]
        elif name in _TRUSTED_MODULES:
            names[name] = importlib.import_module(name)
        elif name in _TRUSTED_NAMES and (of_program or function):
            names[name] = getattr(collections, name)
        elif not hasattr(builtins, name):
            names[name] = Remote(asserts, name)
    names.update(__name__="tests", __builtins__=builtins)
    try:
        exec(compile(source, "tests.py", "exec", dont_inherit=True), names)
    except CannotCross as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(CANNOT_CROSS) from None
    except Exception as error:
        if not isinstance(error, ProgramFailed) and not isinstance(error.__cause__, ProgramFailed):
            raise
        kind = "" if isinstance(error, ProgramFailed) else f"{type(error).__name__}: "
        sys.stderr.write(f"{kind}{error}".replace("\n", " ") + "\n")
        raise SystemExit(PROGRAM_RAISED) from None


def _shadowed_builtin(source: str, free: set[str]) -> str | None:
    """The function under test when it is named like a builtin: tests then name nothing else."""
    if not all(hasattr(builtins, name) for name in free):
        return None
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    inner = [c for c in calls if not any(isinstance(n, ast.Call) for n in list(ast.walk(c))[1:])]
    return next((c.func.id for c in inner if isinstance(c.func, ast.Name)), None)


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
