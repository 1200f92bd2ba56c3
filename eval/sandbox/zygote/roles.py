"""What a test process does once it is isolated: compile, run, call or check a program. Programs see
the namespace that LiveCodeBench gives them (star imports of the common modules). File descriptors:
0, 1, 2 are the program's, 3 is the role's own."""

import _sitebuiltins
import atexit
import builtins
import collections
import contextlib
import decimal
import fractions
import functools
import gc
import importlib
import inspect
import io
import json
import marshal
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

from . import values

_STAR = "string re datetime collections heapq bisect copy math random statistics itertools"
_STAR += " functools operator io sys json builtins typing"
_PRELOADED = "ast contextlib dataclasses decimal enum fractions queue"
_STREAMS = {f"{folder}{fd}": fd for folder in ("/dev/fd/", "/proc/self/fd/") for fd in range(3)}
_STREAMS |= {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
NOT_JSON = "is not JSON"  # how the error of role `call` ends when the result only lacks a JSON form


def open_file(file: Any, *args: Any, _open: Callable[..., Any] = io.open, **keywords: Any) -> Any:
    """`open`, which also knows the standard streams by path: there is no /proc to link them to."""
    path = os.fspath(file) if isinstance(file, os.PathLike) else file
    fd = _STREAMS.get(path) if isinstance(path, str) else None
    if fd is not None:  # by an opener: a bad mode, which is refused first, leaves no copy behind
        keywords["opener"] = lambda *_: os.dup(fd)
    return _open(file, *args, **keywords)


@functools.cache
def library() -> dict[str, Any]:
    """Names of the library that programs and tests have: the star imports, then the modules."""
    names: dict[str, Any] = {}
    star = [importlib.import_module(name) for name in _STAR.split()]
    for module in star:
        public = getattr(module, "__all__", None)
        public = public or [name for name in vars(module) if not name.startswith("_")]
        names.update({name: getattr(module, name) for name in public})
    return names | {module.__name__: module for module in star if module is not builtins}


def prelude() -> dict[str, Any]:
    """The names every program starts with."""
    builtins.open = io.open = open_file
    for name in _PRELOADED.split():
        importlib.import_module(name)
    names = dict(library())
    with contextlib.suppress(ImportError):  # LeetCode's environment has it without an import
        sorted_ = importlib.import_module("sortedcontainers")
        names.update({name: getattr(sorted_, name) for name in sorted_.__all__})
    quitter = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.exit = builtins.quit = names["exit"] = names["quit"] = quitter
    return names


def open_streams() -> None:
    """Standard streams on descriptors 0 to 2: 0 and 1 are empty files meanwhile, as in a test."""
    for fd in (0, 1):
        file = os.memfd_create("empty")
        os.dup2(file, fd)
        os.close(file)
    stdin = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(stdin, "utf-8", "surrogateescape")
    stdout = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(stdout, "utf-8", "surrogateescape")
    for name, mode in (("stdin", "r"), ("stdout", "w")):  # as the interpreter's own
        stream = getattr(sys, name)
        stream.mode, stream.buffer.raw.name = mode, f"<{name}>"
    stderr: Any = io.FileIO(2, "w", closefd=False)  # unbuffered: a test may be ended at any time
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        stderr, "utf-8", "backslashreplace", write_through=True
    )


class Process:
    """A module that holds the prelude, made before the fork: what a child writes to, it copies."""

    def __init__(self, name: str, names: dict[str, Any]) -> None:
        sys.modules[name] = module = types.ModuleType(name)
        self.prelude = names
        self.streams = (sys.stdout, sys.stdout.buffer, sys.stderr)
        self.globals = vars(module)
        self.globals.update(names, stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr)
        self.globals.update(__name__=name, __builtins__=builtins, __file__="solution.py")

    def run(self, body: Callable[..., None], *arguments: Any) -> int:
        """Call `body`, then end as the interpreter would: threads, atexit, flush, exit status."""
        status = 0
        try:
            body(*arguments)
        except SystemExit as leaving:
            code = leaving.code
            status = 0 if code is None else code & 255 if isinstance(code, int) else 1
        except BaseException:
            status = 1
            with contextlib.suppress(BaseException):
                traceback.print_exc(limit=-3)
        for end in (_join_threads, atexit._run_exitfuncs):
            # As the interpreter: it reports such an error, goes on, and its exit status stays.
            with contextlib.suppress(BaseException):
                end()
        for stream in (sys.stdout, *self.streams, *_left_open()):
            try:
                if stream is not None:
                    stream.flush()
            except ValueError:
                pass  # closed by the program
            except BaseException:
                status = status or 1
        return status


def _join_threads() -> None:
    module: Any = threading  # the main thread's lock is always there, and costly to end
    if len(module._shutdown_locks) > 1 or module._threading_atexits:
        module._shutdown()


def _left_open() -> list[Any]:
    """Files that the program never closed: the interpreter writes what they hold when it ends."""
    writers = [o for o in gc.get_objects() if issubclass(type(o), _WRITERS)]
    # Text first, into its buffer.
    return sorted(writers, key=lambda file: not issubclass(type(file), io.TextIOWrapper))


def function_of(process: Process, name: str) -> Any:
    """`name` of the program: a method of its class Solution, or what its module defines. The
    prelude does not count: a program without `add` must not pass for `operator.add`."""
    name = name.rpartition(".")[2]
    solution = process.globals.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name in process.globals and process.globals[name] is not process.prelude.get(name, ...):
        return process.globals[name]
    raise NameError(f"the program defines no {name!r}")


def call_with(function: Callable[..., Any], arguments: list[Any], names: list[str]) -> Any:
    """`function` of `arguments`, the last of which have these names: passed by name where it has
    such parameters, else by position, for solutions to LeetCode's problems rename theirs."""
    if not names:
        return function(*arguments)
    count = len(arguments) - len(names)
    named = dict(zip(names, arguments[count:], strict=True))
    try:
        inspect.signature(function).bind(*arguments[:count], **named)
    except TypeError:
        return function(*arguments)
    except ValueError:
        pass  # a builtin that does not tell
    return function(*arguments[:count], **named)


def _plain(value: Any) -> Any:
    """JSON for what solutions return beside JSON types, by value: deques, views of dictionaries,
    exact numbers, arrays and their scalars."""
    if isinstance(value, collections.deque | range | KeysView | ValuesView | ItemsView):
        return list(value)
    if isinstance(value, decimal.Decimal | fractions.Fraction):
        is_whole = value == value and abs(value) != float("inf") and value == int(value)
        return int(value) if is_whole else float(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} {NOT_JSON}")


_encode = json.JSONEncoder(default=_plain).encode


def call(process: Process, code: types.CodeType, function: str, arguments: bytes) -> None:
    """Role `call`: write the JSON of what the function returns to descriptor 3. `arguments` is
    JSON: {"args": list, "names": names of its last ones}, and "typed" for `values.pack`."""
    exec(code, process.globals)
    request = values.decode(arguments)
    args, typed = request["args"], "typed" in request
    args = values.unpack(args, _plain, process.globals) if typed else args
    result = call_with(function_of(process, function), args, request["names"])
    values.write(_encode(values.pack(result, _plain) if typed else result).encode())


def compile_program(source: bytes) -> None:
    """Role `compile`: write the marshalled code of the program to descriptor 3. It is UTF-8,
    whatever its coding cookie says."""
    code = compile(source.decode(), "solution.py", "exec", dont_inherit=True)
    values.write(marshal.dumps(code))


def check(process: Process, request: dict[str, Any]) -> None:
    """Role `checker`: a trusted program reads input, output and answer files named by argv."""
    for name, content in request["files"].items():
        with open(name, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(content)
    sys.argv = ["checker.py", *request["files"]]
    exec(compile(request["checker"], "checker.py", "exec", dont_inherit=True), process.globals)
