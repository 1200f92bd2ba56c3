"""Assertions about a program that may lie: the tests run in one process, the program in another.

Runs inside the sandbox. The program's process serves calls (`serve`), the tests' process makes them
(`run_tests`) through proxies, and only plain data crosses. So an assertion is evaluated where the
program has no code: `sys.exit(0)`, an always-true `__eq__` or a patched builtin decide nothing.
What the tests compare with stays where they are: of an object of the program they read attributes
and call methods, but no operator puts it beside anything.
"""

import builtins
import collections
import functools
import importlib
import math
import symtable
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from klear.eval.sandbox.zygote import values
from klear.eval.sandbox.zygote.roles import Process, call_with, function_of

PROGRAM_RAISED = 3  # exit status of the tests' process when the program, not an assertion, failed
CANNOT_CROSS = 4  # … when the tests hand over what only exists in their own process
_READY = "ready"  # the program's process is isolated and about to run the program
_MODULES = "collections itertools json math random re string sys"
PROVIDED: dict[str, Any] = {  # what test code may use without defining it
    **{name: importlib.import_module(name) for name in _MODULES.split()},
    **{name: getattr(collections, name) for name in ("Counter", "OrderedDict", "defaultdict")},
    **{"deque": collections.deque, "inf": math.inf},
    **values.FOR_TESTS,
    **values.FOR_PROGRAMS,
}

Ask = Callable[[Any, str | None, list[Any], list[str] | None], Any]
"""Call an object of the program, or its attribute (first two arguments), with what is given, whose
last ones have these names; None for the names: read the attribute and call nothing."""


class ProgramFailed(Exception):
    """The program under test raised something that no test can name, or went away."""


class CannotCross(Exception):
    """The tests pass on an object of their own, such as a function."""


def serve(process: Process, code: types.CodeType, candidate: str | None) -> None:
    """Role `serve`: run the program, then answer calls on descriptor 3 until the tests end."""
    channel = values.Channel()
    channel.send(_READY)
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
            name = candidate or _last_function(process.globals)
        return function_of(process, name)

    while True:
        try:
            target, attribute, args, names = channel.receive()
        except EOFError:
            return
        try:
            given = values.unpack(args, object_of, process.globals, functions=True)
            found = object_of(target)
            found = getattr(found, attribute) if attribute else found
            result = found if names is None else call_with(found, given, names)
            reply = values.pack([result, *given], keep)
        except Exception as error:
            traceback.print_exc(limit=-3)
            known = type(error) if type(error).__module__ == "builtins" else RuntimeError
            reply = {"error": known.__name__, "message": str(error)[:500]}
        channel.send(reply)


def _last_function(names: dict[str, Any]) -> str:
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

    It has no operators: the program would learn what the tests expect, and its own methods would
    say yes. So a comparison raises AssertionError (a wrong value); but no object equals None.
    """

    __slots__ = ("_ask_remote", "_remote")  # no attribute of the program can be set

    def __init__(self, ask: Ask, name: str | int) -> None:
        self._remote = name
        self._ask_remote = functools.partial(ask, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._ask_remote(None, [*args, *keywords.values()], list(keywords))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return self._ask_remote(attribute, [], None)

    def __eq__(self, other: Any) -> bool:
        if other is None or self is other:
            return self is other
        raise AssertionError("the program returned an object where the tests need plain data")

    __hash__ = object.__hash__


def _asking(channel: values.Channel) -> Ask:
    """The tests' end of the channel."""

    def name_of(value: Any) -> Any:
        if isinstance(value, Remote):
            return value._remote
        raise CannotCross(f"a {type(value).__name__} of the tests cannot reach the program")

    def ask(target: Any, attribute: str | None, given: list[Any], names: list[str] | None) -> Any:
        args = values.pack(given, name_of, functions=True)
        try:
            channel.send([target, attribute, args, names])
            reply = channel.receive()
        except (EOFError, OSError, ValueError) as gone:
            raise ProgramFailed("the program ended before it answered the test") from gone
        if isinstance(reply, dict) and reply.keys() == {"error", "message"}:
            raise _exception(reply["error"])(reply["message"]) from ProgramFailed()
        try:
            result, *after = values.unpack(
                reply, lambda name: Remote(ask, name), values.FOR_PROGRAMS
            )
        except Exception as error:  # the program has the other end of the channel
            raise ProgramFailed(f"a reply of the program is none: {error}") from error
        for argument, changed in zip(given, after, strict=False):
            _update(argument, changed)
        return result

    return ask


def _exception(name: str) -> type[Exception]:
    """The built-in exception that the program raised: tests may expect it. Not one that means
    something else where it arrives: StopIteration ends `all(map(…))` early."""
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


def run_tests(source: str, function: str | None) -> None:
    """Role `asserts`: run the test code; names it does not define belong to the program.

    A `check` that is defined and never called is called with `candidate`, as HumanEval's tests are.
    """
    channel = values.Channel()
    channel.receive()  # or tests that call nothing could end before the program is isolated
    used, own = names_of(source)
    free = used - own
    if "check" in own - used:
        source += "\ncheck(candidate)\n"
        free.add("candidate")
    ask = _asking(channel)
    remote = free - PROVIDED.keys() - vars(builtins).keys() | (free & {function})
    names = PROVIDED | {name: Remote(ask, name) for name in remote}
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


def names_of(source: str) -> tuple[set[str], set[str]]:
    """Global names that the code uses, and those that it defines itself."""
    top = symtable.symtable(source, "tests.py", "exec")
    used, scopes = set(), [top]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is top or symbol.is_global()):
                used.add(symbol.get_name())
    return used, {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
