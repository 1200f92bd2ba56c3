"""Assertions about a program that may lie: the tests run in one process, the program in another.

Runs inside the sandbox. The program's process serves calls (`serve`), the tests' process makes them
(`run_tests`) through proxies, and only plain data crosses. So an assertion is evaluated where the
program has no code: `sys.exit(0)`, an always-true `__eq__` or a patched builtin decide nothing.
What the tests compare with stays where they are: of an object of the program they read attributes
and call methods, but no operator puts it beside anything.
"""

import builtins
import collections
import contextlib
import functools
import importlib
import marshal
import math
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from . import values
from .roles import Process, call_with, function_of

PROGRAM_RAISED = 3  # exit status of the tests' process when the program, not an assertion, failed
CANNOT_CROSS = 4  # … when the tests hand over what only exists in their own process
_READY = "ready"  # the program's process is isolated and about to run the program
_MODULES = "collections itertools json math random re string sys"
PROVIDED: dict[str, Any] = {
    **{name: importlib.import_module(name) for name in _MODULES.split()},
    **{name: getattr(collections, name) for name in ("Counter", "OrderedDict", "defaultdict")},
    **{"deque": collections.deque, "inf": math.inf},
    **values.FOR_TESTS,
    **values.FOR_PROGRAMS,
}
"""What test code may use without defining it."""

Ask = Callable[[Any, str | None, list[Any], list[str] | None], Any]
"""Call an object of the program, or its attribute (first two arguments), with what is given, whose
last ones have these names; None for the names: read the attribute and call nothing."""


class ProgramFailed(Exception):
    """The program under test raised something that no test can name."""


class _Decides(Exception):
    """The first of these is the end of the tests, also where `except Exception` catches it."""

    first: "_Decides | None" = None  # of this process

    def __init__(self, message: str) -> None:
        super().__init__(message)
        _Decides.first = _Decides.first or self


class ProgramGone(_Decides, ProgramFailed):
    """The program ended before it answered."""


class CannotCross(_Decides):
    """The tests pass on an object of their own, or change what the program would not see."""


def serve(process: Process, code: types.CodeType, candidate: str | None) -> None:
    """Role `serve`: run the program, then answer calls on descriptor 3 until the tests end."""
    channel = values.Channel()
    channel.send(_READY)
    exec(code, process.globals)
    served = _Served(process, channel, candidate)
    while True:
        try:
            question = channel.receive()
        except EOFError:
            return
        channel.send(served.answer(*question))


class _Served:
    """The program, once it has run, as the tests may use it."""

    def __init__(self, process: Process, channel: values.Channel, candidate: str | None) -> None:
        self.process, self.channel, self.candidate = process, channel, candidate
        self.kept: list[Any] = []  # objects that the tests know by their number
        self.shown = 0  # bytes of standard output that are older than the present question
        self.captured = False

    def answer(
        self, target: Any, attribute: str | None, args: Any, names: list[str] | None,
        expected: list[str], captured: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Use an object, or call it where there are `names`. `expected` exceptions are named, and
        what is printed meanwhile is told where it is `captured`."""
        if captured and not self.captured:
            self.printed()
        self.captured = captured
        try:
            arguments = values.unpack(args, self.object_of, self.process.globals, functions=True)
            used = self.object_of(target)
            used = getattr(used, attribute) if attribute else used
            result = used if names is None else call_with(used, arguments, names)
            packed = values.pack([result, *arguments], self.keep)
            if isinstance(used, type) and values.is_more_than_data(result):
                packed[0] = {"object": self.keep(result)}
            reply = {"values": packed}
            return {**reply, "printed": self.printed()} if captured else reply
        except Exception as error:
            traceback.print_exc(limit=-3)
            builtin = (c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")
            kinds = ((name, self.process.globals.get(name)) for name in expected)
            return {
                "error": next(builtin),
                "own": [n for n, k in kinds if isinstance(k, type) and isinstance(error, k)],
                "args": values.pack(list(error.args), self.keep),
                "message": str(error)[:500],
                "object": self.keep(error),
                "printed": self.printed() if captured else "",
            }

    def keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept) - 1

    def object_of(self, name: Any) -> Any:
        """A kept object by its number, a function of the tests, or a name of the program."""
        if isinstance(name, int):
            return self.kept[name]
        if isinstance(name, list):
            return functools.partial(self.ask_back, name)
        if name == "candidate":
            name = self.candidate or _last_function(self.process.globals)
        return function_of(self.process, name)

    def ask_back(self, function: list[int], *args: Any, **keywords: Any) -> Any:
        """Call a function that the tests gave to the program."""
        arguments = values.pack([*args, *keywords.values()], self.keep)
        reply = self.channel.ask([function, arguments, list(keywords)], self.answer)
        if "error" in reply:
            raise _exception(reply["error"])(reply["message"])
        classes = self.process.globals
        return values.unpack(reply["value"], self.object_of, classes, functions=True)

    def printed(self) -> str:
        with contextlib.suppress(ValueError, OSError):  # closed by the program
            for stream in (sys.stdout, self.process.streams[0]):
                stream.flush()
            text = os.pread(1, os.fstat(1).st_size - self.shown, self.shown)
            self.shown += len(text)
            return text.decode("utf-8", "replace")
        return ""


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
    """A name or an object of the program, used from the tests' process. It has no operators, by
    which the program would learn what the tests expect, and say yes: a comparison raises
    AssertionError; but no object equals None."""

    __slots__ = ("_ask_remote", "_is_named", "_remote")  # no attribute of the program can be set

    def __init__(self, ask: Ask, name: str | int, is_named: bool) -> None:
        """`is_named`: the tests name it, or the class that made it."""
        self._remote, self._is_named = name, is_named
        self._ask_remote = functools.partial(ask, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._ask_remote(None, [*args, *keywords.values()], list(keywords))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if attribute in values.DATA_PREDICATES and not self._is_named:
            raise AssertionError(_NO_DATA)
        return self._ask_remote(attribute, [], None)

    def __eq__(self, other: Any) -> bool:
        if other is None or self is other:
            return self is other
        raise AssertionError(_NO_DATA)

    __hash__ = object.__hash__


_NO_DATA = "the program returned an object where the tests need plain data"


def _asking(channel: values.Channel, expected: dict[str, type[Exception]]) -> Ask:
    """The tests' end of the channel. `expected` are the program's exceptions that they name."""
    functions: list[Callable[..., Any]] = []  # of the tests, which the program may call

    def name_of(value: Any) -> Any:
        if isinstance(value, Remote):
            return value._remote
        if callable(value) and not isinstance(value, type):
            functions.append(value)
            return [len(functions) - 1]
        raise CannotCross(f"a {type(value).__name__} of the tests cannot reach the program")

    def object_of(name: Any, is_named: bool = False) -> Remote:
        return Remote(ask, name, is_named)

    def answer(function: list[int], args: Any, names: list[str]) -> dict[str, Any]:
        arguments = values.unpack(args, object_of, values.FOR_PROGRAMS)
        try:
            result = call_with(functions[function[0]], arguments, names)
        except Exception as error:
            if isinstance(error, CannotCross | ProgramFailed):
                raise
            return {"error": type(error).__name__, "message": str(error)}
        return {"value": values.pack(result, name_of, functions=True)}

    def ask(
        target: Any, attribute: str | None, arguments: list[Any], names: list[str] | None
    ) -> Any:
        if sys.stdin is not sys.__stdin__ or (builtins.input, builtins.print) != _PATCHED:
            raise CannotCross("what the tests put in place of input or print is not the program's")
        args = values.pack(arguments, name_of, functions=True)
        try:
            captured = sys.stdout is not sys.__stdout__  # the tests look at what is printed
            question = [target, attribute, args, names, list(expected), captured]
            reply = channel.ask(question, answer)
            if captured:
                sys.stdout.write(reply["printed"])
            error = _raised(reply, expected, object_of) if "error" in reply else None
            of_class = isinstance(target, str) and target[:1].isupper()
            remote = functools.partial(object_of, is_named=of_class)
            result, *after = values.unpack(reply.get("values", [None]), remote, values.FOR_PROGRAMS)
        except (EOFError, OSError) as gone:
            raise ProgramGone("the program ended before it answered the test") from gone
        except CannotCross:
            raise
        except Exception as wrong:  # the program has the other end of the channel
            raise ProgramFailed(f"a reply of the program is none: {wrong}") from wrong
        if error:
            raise error from ProgramFailed()
        for argument, changed in zip(arguments, after, strict=False):
            _update(argument, changed)
        return result

    return ask


_PATCHED = (builtins.input, builtins.print)


def _raised(
    reply: dict[str, Any], expected: dict[str, type[Exception]], object_of: Callable[[int], Remote]
) -> Exception:
    """What the program raised, as the tests name it; attributes are those of its own object."""
    own = [expected[name] for name in reply["own"]]
    kind = _exception(reply["error"])
    args = values.unpack(reply["args"], object_of, values.FOR_PROGRAMS)
    if not own:
        return kind(*args)
    remote, message = object_of(reply["object"]), str(reply["message"])
    body = {"__getattr__": lambda _, name: getattr(remote, name), "__str__": lambda _: message}
    return type(own[0].__name__, (*own, kind), body)(*args)


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


def run_tests(process: Process, tests: bytes) -> None:
    """Role `asserts`: run test code that `eval.programs.assertions` has prepared."""
    channel = values.Channel()
    channel.receive()  # or tests that call nothing could end before the program is isolated
    code, remote, caught, numpy = marshal.loads(tests)
    expected: dict[str, type[Exception]] = {name: type(name, (Exception,), {}) for name in caught}
    ask = _asking(channel, expected)
    process.globals.update({name: Remote(ask, name, True) for name in remote} | expected)
    try:
        process.globals.update({name: importlib.import_module("numpy") for name in numpy})
        try:
            exec(code, process.globals)
        except SystemExit:  # of unittest.main, which finds no tests
            if not _Decides.first and (channel.used or not remote):
                raise
        if _Decides.first:
            raise _Decides.first
        if remote and not channel.used:
            raise CannotCross("the tests end without a call of the program")
    except Exception as last:
        error = _Decides.first or last
        status = CANNOT_CROSS if isinstance(error, CannotCross | ImportError) else 0
        if isinstance(error, ProgramFailed) or isinstance(error.__cause__, ProgramFailed):
            status = PROGRAM_RAISED
        if not status:
            raise
        kind = "" if isinstance(error, CannotCross | ProgramFailed) else f"{type(error).__name__}: "
        sys.stderr.write(f"{kind}{error}"[:500].replace("\n", " ") + "\n")
        raise SystemExit(status) from None
