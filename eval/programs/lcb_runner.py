"""LiveCodeBench's official way to run and compare, for scores that others can be set beside.

Its runner puts the program into a function, with an imitation of standard input that knows `read`,
`readline` and `readlines` only, and collects what reaches `sys.stdout` as text: programs that read
or write otherwise, or rely on module scope, fail there and pass in Python. The same is rebuilt here
as a program, so that it stays in the sandbox; CPU time is limited instead of wall time. Lines must
match one by one, as text or lists of equal decimals; values by `compare.equal_json`.
"""

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from ...configs.settings.judging import JudgeSettings
from ..records import Score
from .compare import same_lines

CALL = "livecodebench_call"
"""The function that a wrapped program with a function is to be called by."""

_START = """\
import sys
sys.setrecursionlimit(50000)
sys.set_int_max_str_digits(4300)
source = {source!r}
if "numpy" in source:
    import numpy  # the runner has it before it forbids what follows
def forbid():
    import builtins, os, shutil, subprocess
    gone = "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename"
    gone += " renames truncate replace unlink fchmod fchown chmod chown chroot lchown getcwd chdir"
    for name in gone.split():
        setattr(os, name, None)
    shutil.rmtree = shutil.move = shutil.chown = subprocess.Popen = builtins.quit = None
    for name in ("ipdb", "joblib", "resource", "psutil", "tkinter"):
        sys.modules[name] = None
"""

_STDIN = """
import ast, atexit, io, os
class Bytes:
    def __init__(self, data):
        self.data = data
    def read(self, *args):
        return self.data
    def readline(self, *args):
        return self.data.split(b"\\n")[0] + b"\\n"
class Stdin:
    def __init__(self, text):
        self.read = lambda *args: text
        self.readlines = lambda *args: text.split("\\n")
        self.buffer = Bytes(text.encode())
        self.rest = io.StringIO(text)
    def __getattr__(self, name):
        return getattr(self.rest, name)
def run():
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
        tree.body[-1:] = last.body
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    inner = [node for node in tree.body if node not in imports]
    function = ast.parse("def wrapped_function(): pass").body[0]
    function.body = inner
    text = "\\n".join(map(ast.unparse, [*imports, function]))
    names = dict(globals(), __name__="tmp_sol", quit=None)
    given = sys.stdin.read()
    answer = os.dup(1)
    for fd in (0, 1):  # the runner's own, not the program's
        os.dup2(os.open("nowhere", os.O_RDWR | os.O_CREAT), fd)
    write = os.write
    forbid()
    exec("import sys\\n" + text, names)
    solution = names["wrapped_function"]
    if "class Solution" in text:
        solution = names["Solution"]().wrapped_function
    collected = sys.stdout = io.StringIO()
    collected.close = lambda unused: 1
    lines = iter(given.split("\\n"))
    sys.stdin.read = lambda *args: given  # for who imported it by name
    sys.stdin.readline = lambda *args: next(lines)
    sys.stdin.readlines = lambda *args: given.split("\\n")
    sys.stdin = Stdin(given)
    try:
        solution()
    except SystemExit:
        pass
    atexit._clear()
    data = collected.getvalue().encode(errors="surrogateescape")
    while data:
        data = data[write(answer, data):]
run()
"""

_CALL = """
def plain(value):
    if type(value).__module__ == "numpy" and not getattr(value, "shape", 1):
        value = value.item()
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {{key: plain(one) for key, one in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {{"not JSON": type(value).__name__}}
def {name}(*arguments):
    forbid()
    names = dict(globals(), __name__="tmp_sol", quit=None)
    exec("import sys\\n" + source, names)
    holder = names["Solution"]() if "class Solution" in source else None
    function = getattr(holder, {function!r}) if holder else names[{function!r}]
    result = function(*arguments)
    return plain(list(result) if isinstance(result, tuple) else result)
"""


def official(settings: JudgeSettings) -> JudgeSettings:
    """The same judge under LiveCodeBench's rules: its runner, its comparison, every test."""
    changes = {"comparator": "livecodebench", "max_tests": None, "stop_at_first_failure": True}
    return settings.model_copy(update=changes)


def side_by_side(ours: Iterable[Score], theirs: Iterable[Score]) -> tuple[float | None, int]:
    """Share of samples right by LiveCodeBench's rule, and on how many of both the rules differ."""
    official = {(s.problem_id, s.index): s.correct for s in theirs}
    pairs = [(s.correct, official.get((s.problem_id, s.index))) for s in ours]
    pairs = [pair for pair in pairs if None not in pair]
    share = sum(bool(other) for _, other in pairs) / len(pairs) if pairs else None
    return share, sum(own != other for own, other in pairs)


def wrapped(program: str, function: str | None) -> str:
    """A program that runs `program` as LiveCodeBench does, on stdin or as `CALL` of `function`."""
    start = _START.format(source=program)
    return start + (_CALL.format(name=CALL, function=function) if function else _STDIN)


def same_text(actual: str, expected: str) -> bool:
    return same_lines(actual, expected, _same_line)


def _same_line(actual: str, expected: str) -> bool:
    if actual.strip() == expected.strip():
        return True
    try:
        return [Decimal(t) for t in actual.split()] == [Decimal(t) for t in expected.split()]
    except InvalidOperation:
        return False
