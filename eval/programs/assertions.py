"""Whose a name is that tests use and do not define: the library's, or the program's.

What judges a program's results must not be taken from it: `assert isclose(f(), 0.1)` would pass
with `isclose = lambda *a: True`. What the standard library or numpy has comes from there; a judging
function that nobody has makes the tests unjudgeable, once for all answers to a problem.
"""

import ast
import builtins
import marshal
import re
import symtable
from functools import lru_cache
from typing import Any

from ..sandbox.zygote.asserts import PROVIDED
from ..sandbox.zygote.roles import library

NUMPY = ("np", "numpy")
_SETUP = (ast.Assert, ast.Assign, ast.Import, ast.ImportFrom)  # HumanEval has `assert True`
_ALIKE_FOR_ALL = ast.Tuple | ast.List | ast.Lambda | ast.GeneratorExp | ast.JoinedStr
_CATCH_ALL = ("AssertionError", "Exception", "BaseException")
_ENDS = re.compile("assert|fail|_?exit|quit|raises")
_FILES = {"open", "tempfile", "shutil"}
_OUTSIDE = re.compile("environ|(put|get)env|argv|mkdir|makedirs|exists|is_?(file|dir)|listdir")
_EXPECT_ERRORS = ("raises", "assertRaises", "assertRaisesRegex", "suppress")


class TestsBroken(Exception):
    """The tests themselves cannot judge (no tests, a checker that fails): unscored."""

    __test__ = False  # not a pytest class


@lru_cache(maxsize=4096)
def prepared(source: str, function: str | None) -> bytes:
    """What the sandbox needs to run the test code: the code, the names that are the program's,
    those of them that are exceptions, and what numpy is called. `function` is tested; a `check`
    that is never called is called with `candidate`, as HumanEval expects. Raises TestsBroken."""
    try:
        used, own = names_of(source)
        free = used - own
        if "check" in own - used:
            source += "\ncheck(candidate)\n"
            free.add("candidate")
        module = ast.parse(source)
        names = program_names(module, free, function)
        if not names and not (module.body and all(isinstance(n, _SETUP) for n in module.body)):
            raise TestsBroken("the tests name nothing of the program")
        for test in (node.test for node in _all(module, ast.Assert)):
            if isinstance(test, _ALIKE_FOR_ALL) or isinstance(getattr(test, "value", 0), str):
                raise TestsBroken(f"all programs fare alike: assert {ast.unparse(test)[:80]}")
            if any(map(_is_of_copies, _all(test, ast.Compare))):
                raise TestsBroken(f"no copy is what it was: assert {ast.unparse(test)[:80]}")
        if apart := sorted((used - {function}) & _FILES | _outside(module)):
            raise TestsBroken(f"they use {apart[0]}, which a program judged apart does not see")
        if names and not _can_fail(module):
            raise TestsBroken("no wrong value fails: no assert, raise or exit of the tests counts")
        caught = caught_names(module) & free - PROVIDED.keys() - vars(builtins).keys()
        code = compile(module, "tests.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TestsBroken(f"the tests are no Python: {error}") from error
    numpy = (free - names) & {*NUMPY}
    return marshal.dumps((code, *map(sorted, (names, caught, numpy))))


def _is_of_copies(compare: ast.Compare) -> bool:
    """Whether it asks if two objects are one: what a program has is a copy of what tests have."""
    sides = (compare.left, *compare.comparators)
    plain = any(isinstance(side, ast.Constant) or _names(side) & {"type"} for side in sides)
    return not plain and any(isinstance(operator, ast.Is | ast.IsNot) for operator in compare.ops)


def _outside(module: ast.Module) -> set[str]:
    """What tests use of the process around them. A seed too, unless they draw something by it."""
    attributes = _all(module, ast.Attribute)
    random = {a.attr for a in attributes if _is_of(a, {"random"})}
    process = {a.attr for a in attributes if _is_of(a, {"os", "sys", "Path"})}
    return {a for a in process if _OUTSIDE.fullmatch(a)} | (random if random == {"seed"} else set())


def _is_of(attribute: ast.Attribute, modules: set[str]) -> bool:
    inner = {a.attr for a in _all(attribute.value, ast.Attribute)}
    return bool((_names(attribute.value) | inner) & modules)


def _can_fail(module: ast.Module) -> bool:
    """Whether a wrong value ends the tests that look at one, and is not only printed or caught."""
    lost = set[ast.AST]()
    for attempt in _all(module, ast.Try):
        kinds = [h.type and _names(h.type) & {*_CATCH_ALL} for h in attempt.handlers]
        if any(kind is None or kind for kind in kinds):
            lost.update(node for part in attempt.body for node in ast.walk(part))
    for node in set(ast.walk(module)) - lost:
        match node:
            case ast.Assert() | ast.Raise():
                return True
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)) if _ENDS.match(name):
                return True
    return not (_all(module, ast.Assert) or _all(module, ast.Compare))


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


def program_names(module: ast.Module, free: set[str], function: str | None) -> set[str]:
    """Those of the `free` names that are the program's; `function` is tested. Without it a name of
    the library may be (`assert gcd(4, 6) == 2`) unless another is. Raises TestsBroken."""
    tested = free & {function, "candidate", "Solution"}
    remote = tested | free - PROVIDED.keys() - vars(builtins).keys()
    if len(remote) < 2:
        return remote
    library_names = {name for name in remote - tested if name in library() or name in NUMPY}
    judging, deciding = _judges(module, remote - {*NUMPY}, library_names)
    if not tested and not any(name[:1].islower() for name in remote - library_names):
        library_names &= judging | {*NUMPY}
    for name in sorted((judging if tested else deciding) - library_names - tested):
        raise TestsBroken(f"the tests do not define {name!r}, by which they judge")
    return remote - library_names


def _judges(
    module: ast.Module, remote: set[str], library_names: set[str]
) -> tuple[set[str], set[str]]:
    """The functions among the `remote` names that take a result of another one, or stand beside it
    in an assertion; and of these the ones whose word is the verdict: a function may take back what
    another did (`decode(encode(x)) == x`). The library's are no rivals of any."""
    classes = {name for name in remote if name[:1].isupper()}  # what they make is no result yet
    results = remote - classes | remote & {"Solution"}

    def is_result(node: ast.AST, judge: str = "") -> bool:
        methods = (n for n in _all(node, ast.Attribute) if _names(n) & classes)
        return bool(_names(node) & (results - {judge})) or any(methods)

    def outermost(node: ast.AST) -> set[str]:
        match node:
            case ast.Call(func=ast.Name(name)) if name in results:
                return {name}
        return set().union(*map(outermost, ast.iter_child_nodes(node)))

    for assign in _all(module, ast.Assign):
        if is_result(assign.value):
            results |= {name for target in assign.targets for name in _names(target)}
    judging, compared = set[str](), set[ast.AST]()
    for node in _all(module, ast.Assert):
        for part in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
            rivals = outermost(part) - library_names
            judging |= rivals if len(rivals) > 1 else set()
            match part:
                case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(bool())]):
                    pass
                case ast.Compare(ops=[ast.Eq()]):
                    compared.update(ast.walk(part))
    deciding = set(judging)
    for call in _all(module, ast.Call):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in remote and any(is_result(n, name) for n in (*call.args, *call.keywords)):
            judging.add(name)
            deciding |= set() if call in compared else {name}
    return judging, deciding


def caught_names(module: ast.Module) -> set[str]:
    names = set[str]()
    for node in ast.walk(module):
        match node:
            case ast.ExceptHandler(type=ast.AST() as kinds):
                names |= _names(kinds)
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), args=[kinds, *_]):
                names |= _names(kinds) if name in _EXPECT_ERRORS else set()
    return names


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in _all(node, ast.Name)}


def _all(node: ast.AST, kind: type[Any]) -> list[Any]:
    return [inner for inner in ast.walk(node) if isinstance(inner, kind)]
