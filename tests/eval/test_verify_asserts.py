"""Assertions about objects, trees and lists of the program, judged where it has no code."""

import pytest

from configs.settings.judging import JudgeSettings
from eval.programs.verify import TestsBroken, judge_program
from eval.records import TestSuite


@pytest.fixture
def verdict(sandbox):
    def judged(program: str, *codes: str, fn_name: str | None = None) -> str:
        cases = [{"code": code} for code in codes]
        suite = {"kind": "assert", "cases": cases, "time_limit_s": 2.0, "fn_name": fn_name}
        tests = TestSuite.model_validate(suite)
        return judge_program(sandbox, tests, program, JudgeSettings()).verdict

    return judged


BAG = """
class Bag:
    def __init__(self, items=()): self.items = list(items)
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __contains__(self, x): return x in self.items
    def __iter__(self): return iter(self.items)
    def __add__(self, other): return Bag(self.items + other.items)
    def __eq__(self, other): return sorted(self.items) == sorted(other.items)
    def __lt__(self, other): return len(self) < len(other)
    def __str__(self): return f"Bag({self.items})"
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("assert len(Bag([1, 2])) == 2", "AC"),
        ("b = Bag([1, 2])\nassert b[1] == 2 and 1 in b and 3 not in b", "AC"),
        ("assert sorted(Bag([2, 1])) == [1, 2]", "AC"),
        ("assert (Bag([1]) + Bag([2])).items == [1, 2]", "AC"),
        ("assert Bag([1, 2]) == Bag([2, 1])", "AC"),
        ("assert Bag([1]) != Bag([2])", "AC"),
        ("assert Bag([1]) == [1]", "WA"),
        ("assert Bag([1]) < Bag([1, 2])", "AC"),
        ("assert str(Bag([1])) == 'Bag([1])'", "AC"),
        ("b = Bag()\nb.name = 'x'\nassert b.name == 'x' and not b", "AC"),
        ("assert len(Bag([1])) == 2", "WA"),
        ("assert Bag([1])[5] == 1", "RE"),
    ],
)
def test_objects_of_the_program_are_used_like_any_other(verdict, test, expected):
    assert verdict(BAG, test) == expected


LISTS = "assert is_same_list(candidate(list_node([1, 2, 3])), list_node([3, 2, 1]))"
TREES = "assert is_same_tree(candidate(root=tree_node([1, 2, None, 3])), tree_node([1, None, 2]))"
REVERSE = """
class Solution:
    def turn(self, head: Optional[ListNode]) -> Optional[ListNode]:
        last = None
        while head:
            head.next, last, head = last, head, head.next
        return last
"""
RIGHT = "def turn(root):\n    return TreeNode(1, None, TreeNode(2))"
ALWAYS = "class Same:\n    __eq__ = lambda s, o: True\n    val = next = left = right = None\n"


@pytest.mark.parametrize(
    ("program", "test", "expected"),
    [
        (REVERSE, LISTS, "AC"),
        ("def turn(head): return head", LISTS, "WA"),
        ("def turn(head): return None", LISTS, "WA"),
        ("def turn(head): return [3, 2, 1]", LISTS, "WA"),
        ("def turn(head):\n    head.next = head\n    return head", LISTS, "RE"),
        ("def is_same_list(a, b): return True\ndef turn(head): return head", LISTS, "WA"),
        (f"{ALWAYS}def turn(head): return Same()", LISTS, "WA"),
        (ALWAYS.replace("Same", "ListNode") + "def turn(head): return ListNode()", LISTS, "RE"),
        (
            "class ListNode:\n    def __init__(self, val, next=None):\n        self.val = val\n"
            "        self.next = next\n" + REVERSE,
            LISTS,
            "AC",
        ),
        (RIGHT, TREES, "AC"),
        ("def turn(root): return root", TREES, "WA"),
        ("def turn(root): return TreeNode(1, TreeNode(2))", TREES, "WA"),
        ("def turn(root): return root.left.left.val", "assert candidate(tree_node([1, 2, None, 3]))"
         " == 3", "AC"),
        ("def turn(h):\n    h.next = None", "h = list_node([1, 2])\ncandidate(h)\n"
         "assert is_same_list(h, list_node([1]))", "AC"),
        ("def turn(a): return min(a, inf)", "assert candidate(inf) == inf", "AC"),
    ],
)  # fmt: skip
def test_lists_and_trees_travel_as_values(verdict, program, test, expected):
    assert verdict(program, test, fn_name="turn") == expected


def test_builtin_types_and_functions_cross_and_others_cannot(verdict):
    program = "def convert(kind, text): return kind(text)"
    assert verdict(program, "assert convert(int, '3') == 3") == "AC"
    assert verdict(program, "assert convert(len, 'abc') == 3") == "AC"
    with pytest.raises(TestsBroken, match="function of the tests cannot reach"):
        verdict(program, "assert convert(lambda text: 3, 'x') == 3")


def test_objects_and_functions_of_the_program_may_be_passed_back(verdict):
    program = BAG + "def both(a, b): return a.items + b[0].items\ndef apply(f, x): return f(x)\n"
    assert verdict(program, "assert both(Bag([1]), [Bag([2])]) == [1, 2]") == "AC"
    assert verdict(program, "assert apply(Bag, [1])[0] == 1") == "AC"


def test_a_function_named_like_a_builtin_is_found_when_tests_name_nothing_else(verdict):
    assert verdict("def sum(a, b): return a * b", "x = sum(3, 4)\nassert x == 12") == "AC"
    assert verdict("def f(x): return [x]", "assert set(f(1)) == {1}") == "AC"
    assert verdict("def all(x): return True\ndef f(x): return 0", "assert all([f(1)])") == "WA"


@pytest.mark.parametrize(
    ("program", "call"),
    [
        ("def f(xs, key=None, reverse=False): return 3 - 2 * reverse", "f([3], reverse=True)"),
        ("def f(a, b): return a - b", "f(b=4, a=5)"),
        ("def f(a, *, b): return a - b", "f(5, b=4)"),
        ("def f(n, arr): return arr[0] * n - 4", "f(arr=[5, 6], n=1)"),
        ("def f(**names): return names['x']", "f(x=1)"),
        ("class Solution:\n    def f(self, b, a): return a - b", "Solution().f(a=2, b=1)"),
        ("def f(first, second): return first - second", "f(nums=3, k=2)"),  # renamed: by position
    ],
)
@pytest.mark.parametrize("form", ["assert {} == 1", "x = {}\nassert x == 1"])
def test_keywords_go_by_name_and_by_position_to_parameters_of_other_names(
    verdict, program, call, form
):
    assert verdict(program, form.format(call), fn_name="f") == "AC"


def test_a_keyword_that_nothing_takes_is_an_error(verdict):
    assert verdict("def f(a): return a", "assert f(1, k=2) == 1") == "RE"


@pytest.mark.parametrize("form", ["assert f() == {}", "x = f()\nassert x == {}"])
@pytest.mark.parametrize(
    ("result", "expected", "verdict_of_it"),
    [
        ("0.1 + 0.2", "0.3", "WA"),
        ("0.5", "0.5", "AC"),
        ("1000000.5", "1000000.0", "WA"),
        ("1000000", "1000000.0", "AC"),
        ("fractions.Fraction(1)", "1", "AC"),
        ("fractions.Fraction(1, 3)", "1", "WA"),
        ("decimal.Decimal('2.0')", "2", "AC"),
        ("decimal.Decimal('2.1')", "2", "WA"),
        ("2 + 0j", "2", "AC"),
        ("numpy.float32(0.5)", "0.5", "AC"),
        ("{2}", "2", "WA"),
        ("object()", "2", "WA"),
        ("float('nan')", "2", "WA"),
    ],
)
def test_an_assertion_is_exact_whatever_the_type_of_the_result(
    verdict, form, result, expected, verdict_of_it
):
    imports = "import decimal, fractions, numpy\n" if "." in result else ""
    assert verdict(f"{imports}def f(): return {result}", form.format(expected)) == verdict_of_it


@pytest.mark.parametrize(
    ("result", "test"),
    [
        ("(x * 2 for x in range(3))", "assert list(f()) == [0, 2, 4]"),
        ("iter({3: 4})", "assert list(f()) == [3]"),
        ("reversed([1, 2])", "assert sum(f()) == 3 and 2 in f()"),
        ("{1: 2}.keys()", "assert sorted(f()) == [1]"),
        ("decimal.Decimal('0.3')", "from decimal import Decimal\nassert f() * 2 == Decimal('0.6')"),
        ("fractions.Fraction(1, 3)", "assert abs(f() - 1 / 3) < 1e-9"),
        ("numpy.float64(0.25)", "assert abs(f() - 0.25) < 1e-9"),
        ("None", "assert f() != 1 and not f()"),
        ("object()", "assert f() != None"),
    ],
)
def test_results_are_used_as_plain_data(verdict, result, test):
    program = f"import decimal, fractions, numpy\ndef f(): return {result}"
    assert verdict(program, test) == "AC"


def test_a_forged_reply_cannot_make_the_tests_end_themselves(verdict):
    forged = """
import json, os, struct
def make(n):
    data = json.dumps([{"builtin": "exit"}, n]).encode()
    os.write(3, struct.pack("<Q", len(data)) + data)
"""
    assert verdict(forged, "assert make(3)(0) == 3") == "RE"
    assert verdict("def make(n): return lambda k: n + k", "assert make(3)(0) == 3") == "AC"


CODEC = "c = Codec()\nassert c.decode(c.encode('abc')) == 'abc'"
LEAVES = "\"__import__('os')._exit(0)\""


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (f"class Codec:\n  decode = eval\n  def encode(self, s): return {LEAVES}", CODEC),
        (f"class Codec:\n  decode = exec\n  def encode(self, s): return {LEAVES}", CODEC),
        (
            "class Codec:\n  def __init__(self): self.decode = eval\n"
            f"  def encode(self, s): return {LEAVES}",
            CODEC,
        ),
        (
            f"def make(n): return eval if n == 3 else {LEAVES}",
            "f = make(3)\nassert f(make(4)) == 7",
        ),
        ("def get(): return globals", "f = get()\nassert f()['x'] == 7"),
        ("def kind(): return type", "k = kind()\nassert k('T', (), {'a': 7})().a == 8"),
        ("def opener(): return open", "o = opener()\nassert o('/dev/null').read() == 'x'"),
    ],
)
def test_a_function_that_the_program_returns_runs_where_the_program_does(verdict, program, test):
    assert verdict(program, test) in ("RE", "WA")


def test_types_of_data_and_functions_of_the_program_may_be_returned(verdict):
    program = "def kind(x): return type(x)\ndef adder(n): return lambda x: x + n"

    assert verdict(program, "assert kind(3) == int", "f = adder(2)\nassert f(3) == 5") == "AC"


FORGED = """
import json, os, struct
def enc(text):
    reply = json.dumps([{"list_node": [1]}, text]).encode()
    os.write(3, struct.pack("<Q", len(reply)) + reply)
    return text
def dec(text): return text
"""


def test_a_forged_reply_is_the_programs_own_failure(verdict):
    assert verdict(FORGED, "assert dec(enc('abc')) == 'abc'") in ("RE", "WA")


@pytest.mark.parametrize("name", ["Counter", "deque"])
def test_the_librarys_classes_are_not_the_programs(verdict, name):
    cheat = f"class {name}:\n  def __init__(self, x): pass\n  __eq__ = lambda s, o: True\n"
    test = f"assert {name}(f([1, 2, 2])) == {name}([1, 2, 2])"

    assert verdict(f"{cheat}def f(x): return [9]", test) == "WA"
    assert verdict("def f(x): return x", test) == "AC"


def test_a_class_that_is_all_the_program_is_asked_for_is_its_own(verdict):
    program = "class Counter:\n  def add(self, x): return x + 1"

    assert verdict(program, "c = Counter()\nassert c.add(1) == 2") == "AC"
