"""Assertions about a program in another process: what crosses, what tests name, who judges."""

import datetime
import itertools
from typing import Any

import pytest

from klear.configs.settings.judging import JudgeSettings
from klear.eval.programs.formats import parse_suite
from klear.eval.programs.verify import TestsBroken, judge_program
from klear.eval.records import TestSuite
from klear.eval.sandbox.sandbox import Sandbox


def judged(sandbox: Sandbox, suite: TestSuite, program: str) -> str:
    try:
        return judge_program(sandbox, suite, program, JudgeSettings()).verdict
    except TestsBroken:
        return "IE"


@pytest.fixture
def verdict(sandbox):
    def of_code(program: str, tests: str, function: str | None = None) -> str:
        suite = {"kind": "assert", "cases": [{"code": tests}], "fn_name": function}
        return judged(sandbox, TestSuite.model_validate({**suite, "time_limit_s": 1.0}), program)

    return of_code


PLAIN = [
    [1, 2], (1, 2), [1.0, True], [[1], 2], [(1,), 2], {1, 2}, frozenset((2, 1)), {1: 2}, {1: (2,)},
    {(1, 2): 3}, (), {}, None, 1, 1.0, "1", b"1", 1j, {"tuple": [1, 2]}, "{",
]  # fmt: skip
ROUTES = ["assert f() == {0!r}", "x = f()\nassert x == {0!r}", "assert g({0!r}) == 'same'"]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_is_compared_as_python_does_in_every_form_of_assertion(sandbox, value):
    cases = [{"code": route.format(expected)} for expected in PLAIN for route in ROUTES]
    suite = TestSuite.model_validate({"kind": "assert", "cases": cases})
    program = f"value = {value!r}\ndef f(): return value\n"
    program += "def g(x): return 'same' if (type(x), x) == (type(value), value) else 'other'"
    equal = sum(value == expected for expected in PLAIN)
    same = sum(type(value) is type(expected) and value == expected for expected in PLAIN)
    verified = judge_program(sandbox, suite, program, JudgeSettings())
    assert (verified.passed, verified.total) == (2 * equal + same, len(cases))


DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
VALUES: list[tuple[Any, Any]] = [  # and a neighbour of each
    (datetime.date(2024, 2, 29), datetime.date(2024, 2, 28)),
    (datetime.datetime(2024, 2, 29, 1), datetime.datetime(2024, 2, 29, 2)),
    (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2024, 1, 1)),
    (datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 5)),
    (DAY - HOUR, DAY + HOUR),
]
INSIDE = ["{}", "[{}, 1]", "({}, 'x')", "{{'k': {}}}", "{{{}: 'v'}}", "{{{}}}"]
LIAR = """
class Liar(type({value})):
    __eq__ = lambda s, o: True
    __hash__ = lambda s: hash({other})
    isoformat = lambda s, *a: {other}.isoformat()
def f(): return Liar{arguments}
"""


@pytest.mark.parametrize(("pair", "inside"), itertools.product(VALUES, INSIDE), ids=str)
def test_dates_and_times_are_compared_by_value(verdict, pair, inside):
    right, wrong = (inside.format(repr(value)) for value in pair)
    tests = f"import datetime\nassert f() == {right}"
    assert verdict(f"import datetime\ndef f(): return {right}", tests) == "AC"
    assert verdict(f"import datetime\ndef f(): return {wrong}", tests) == "WA"
    assertion = f"import datetime\nassert f({right}) == 'yes'"
    answer = f"import datetime\ndef f(x): return 'yes' if x == {right} else 'no'"
    assert verdict(answer, assertion) == "AC"
    assert verdict(answer, assertion.replace(right, wrong)) == "WA"


@pytest.mark.parametrize("pair", VALUES, ids=str)
def test_a_value_that_lies_about_itself_is_what_it_is(verdict, pair):
    right, wrong = map(repr, pair)
    arguments = "(" + wrong.partition("(")[2]
    lie = "import datetime\n" + LIAR.format(value=wrong, other=right, arguments=arguments)
    assert verdict(lie, f"import datetime\nassert f() == {right}") == "WA"


CAPTURES = [
    "import contextlib, io\nout = io.StringIO()\n"
    "with contextlib.redirect_stdout(out):\n    {call}\n",
    "import io, sys\nout = sys.stdout = io.StringIO()\n{call}\nsys.stdout = sys.__stdout__\n",
    "import io\nfrom unittest.mock import patch\n"
    "with patch('sys.stdout', new_callable=io.StringIO) as out:\n    {call}\n",
]
PRINTS = ["print({})", "sys.stdout.write('{}\\n')", "import os; os.write(1, b'{}\\n')"]


@pytest.mark.parametrize(("capture", "print_"), itertools.product(CAPTURES, PRINTS))
def test_what_a_program_prints_while_tests_look_is_seen_and_nothing_else(verdict, capture, print_):
    tests = capture.format(call="f(7)") + "assert out.getvalue() == '7\\n'"
    for printed, expected in ((7, "AC"), (8, "WA")):
        body = print_.format(printed)
        assert verdict(f"def f(x): {body}", tests) == expected
    assert verdict("def f(x): pass", tests) == "WA"
    assert verdict("print('module')\ndef f(x): print(x)", "f(1)\n" + tests) == "AC"
    assert verdict("def f(x): print(x); raise KeyError", tests) == "RE"


OWN = "class Bad({base}):\n    def __init__(self, code=7):\n        super().__init__('no')\n"
OWN += "        self.code = code\n"
EXPECTING = {
    "except": "try:\n    f()\n    assert False\nexcept {name} as error:\n    assert {facts}",
    "tuple": "try:\n    f()\nexcept (KeyError, {name}):\n    pass\nelse:\n    assert False",
    "suppress": "import contextlib\nwith contextlib.suppress({name}):\n    f()\n    assert False",
    "unittest": "import unittest\nunittest.TestCase().assertRaises({name}, f)",
}


@pytest.mark.parametrize(
    ("form", "base"), itertools.product(EXPECTING, ["Exception", "ValueError", "OSError"])
)
def test_exceptions_of_the_program_are_expected_by_name_and_by_base(verdict, form, base):
    program = OWN.format(base=base) + "class Worse(Bad): pass\ndef f(): "
    facts = "error.code == 7 and error.args == ('no',) and str(error) == 'no'"
    own = EXPECTING[form].format(name="Bad", facts=facts)
    builtin = EXPECTING[form].format(name=base, facts="str(error) == 'no'")
    for tests in (own, builtin):
        assert verdict(program + "raise Bad()", tests) == "AC"
        assert verdict(program + "raise Worse()", tests) == "AC"
    assert verdict(program + "pass", own) == "WA"
    assert verdict(program + "raise LookupError", own) == "RE"
    assert verdict("def f(): raise LookupError", own) == "RE"
    assert verdict("Bad = LookupError\ndef f(): return 1", own) == "WA"


LIES = ["{0} = lambda *a, **k: True", "def {0}(*a, **k): return True", "class {0}: __new__ = max"]
LIES += ["{0} = type('M', (), dict.fromkeys(('allclose', 'isclose'), staticmethod(max)))"]
CLOSE = {
    "isclose": ["assert isclose(f(), 0.1)", "r = f()\nassert isclose(r, 0.1)",
                "assert isclose(0.1, f()) == True", "ok = isclose(f(), 0.1)\nassert ok"],
    "np": ["assert np.allclose(f(), [0.1])", "r = f()\nassert np.isclose(r, 0.1)"],
    "numpy": ["assert numpy.allclose(f(), 0.1)"],
    "pi": ["assert f() == round(pi / 31.4, 1)", "assert abs(f() - pi / 31.4159265) < 1e-6"],
    "sqrt": ["assert round(f(), 9) == sqrt(0.01)", "assert abs(sqrt(f()) - 0.1 ** 0.5) < 1e-9"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tests", "function"),
    [(n, t, fn) for n, forms in CLOSE.items() for t in forms for fn in (None, "f")],
)
def test_what_the_library_has_judges_on_the_side_of_the_tests(verdict, name, tests, function):
    assert verdict("def f(): return 0.1", tests, function) == "AC"
    assert verdict("def f(): return 0.2", tests, function) == "WA"
    for lie in LIES:
        assert verdict(f"{lie.format(name)}\ndef f(): return 5", tests, function) == "WA"


UNKNOWN = [
    "assert is_ok(f(), 1)", "assert not is_ok(f(), 1)", "r = f()\nassert is_ok(r, 1)",
    "assert is_ok(f(), 1) == True", "ok = is_ok(f(), 1)\nassert ok", "assert is_ok(f()) > 0.5",
    "assert f() == is_ok(1)", "assert abs(f() - is_ok(1)) < 1e-6",
]  # fmt: skip


@pytest.mark.parametrize(("tests", "function"), itertools.product(UNKNOWN, [None, "f"]))
def test_a_judge_that_nobody_defines_makes_the_tests_unjudgeable(verdict, tests, function):
    for program in ("is_ok = lambda *a: 5\ndef f(): return 5", "def f(): return 1"):
        assert verdict(program, tests, function) == "IE"
    assert verdict("def f(): return 1", f"def is_ok(r, *_): return r\n{tests}") != "IE"


PYTEST = "import pytest\nfrom solution import f\ndef test_f():\n    {}"
UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        {}"
RENAMED = "from solution import f as g\ndef test_f():\n    {}"
HARNESSES = [  # the body of a test, a program and its verdict
    (PYTEST, "with pytest.raises(Exception): f(object())", "def f(x): return 1", "IE"),
    (PYTEST, "with pytest.raises(Exception): f(0)", "import os\ndef f(x): os._exit(0)", "RE"),
    (PYTEST, "with pytest.raises(Exception): f(0)", "def f(x): return 1 / x", "AC"),
    (PYTEST, "with pytest.raises(Exception): f(0)", "def f(x): return 1", "WA"),
    (RENAMED, "assert g(1) == 2", "def f(x): return x + 1", "AC"),
    (RENAMED, "assert g(1) == 2", "def f(x): return x", "WA"),
    (RENAMED, "assert g(1) == 2", "def g(x): return x + 1", "RE"),
    (UNITTEST, "self.assertEqual(f(object()), 1)", "def f(x): return 1", "IE"),
    (UNITTEST, "import random; random.seed(0); self.assertEqual(f(0), 1)", "f = int", "IE"),
    (UNITTEST, "import os; os.makedirs('d'); self.assertEqual(f('d'), 1)", "f = len", "IE"),
    (UNITTEST, "self.assertEqual(f(0), 1)", "import os\ndef f(x): os._exit(0)", "RE"),
    (UNITTEST, "self.assertRaises(Exception, f, 0)", "import os\ndef f(x): os._exit(0)", "RE"),
    (UNITTEST, "self.assertRaises(Exception, f, 0)", "def f(x): return 1 / x", "AC"),
    (UNITTEST, "self.assertRaises(Exception, f, 0)", "def f(x): return 1", "WA"),
]


@pytest.mark.parametrize(("harness", "body", "program", "expected"), HARNESSES)
def test_tests_of_a_harness_judge_as_they_would_there(sandbox, harness, body, program, expected):
    assert judged(sandbox, parse_suite(harness.format(body), time_limit_s=1), program) == expected
