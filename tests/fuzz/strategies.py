"""Hypothesis strategies for what klear reads: model texts, answers, rows, schemas, overrides."""

import string
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from klear.configs.settings.sources import Source

few = settings(derandomize=True, max_examples=40, deadline=None)
"""The same few examples in every run of the suite."""

_folder = TemporaryDirectory(prefix="klear-fuzz-")
SCRATCH = Path(_folder.name)
"""For the files of a property, which has no fixtures."""
SOURCES = [
    Source(name="m", files=("f",), domain="math"),
    Source(name="b", files=("f",), domain="math", answer_in_box=True, date_field="date"),
    Source(name="c", files=("f",), domain="code", time_limit_field="time_limit_s"),
    Source(name="p", files=("f",), domain="code", tests_field="."),
    Source(name="s", files=("f",)),
]

texts = st.text(max_size=200)


PIECES = (
    "\\boxed{", "\\fbox{", "}", "{", "\\boxed 7", "\\frac", "\\dfrac{1}{2}", "\\sqrt",
    "\\text{cm}", "\\left(", "\\right)", "\\pm", "\\infty", "\\cup", "[0,1)", "\\begin{pmatrix}",
    "\\end{pmatrix}", "&", "\\\\", "\\ldots", "1,000", "0.1666\\ldots", "0.\\overline{3}",
    "3 \\frac{1}{2}", "50\\%", "30^\\circ", "x = 3", "x < 1", "\\le", "1011_2", "(A)",
    "5 \\text{ m}", "e^{i\\pi}", "²", "½", "٣", "10^{10^{10}}", "2!", "\\binom{5}{2}", " or ",
    "<think>", "</think>", "```python\n", "```\n", "~~~", "print(1)", "\n", " ", "\t", "\r", "0",
    "7", "9" * 40, "-", "+", ".", "e9", "99e999999", "$",
)  # fmt: skip
answers = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=24).map("".join)
"""Fragments of answers, one after the other."""

numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.fractions(max_denominator=10**6).map(
        lambda q: rf"\frac{{{q.numerator}}}{{{q.denominator}}}"
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda d: f"{d:f}"),
)
DRESSES = (
    "{}", " {} ", "${}$", r"\({}\)", r"\left{}\right", r"\displaystyle {}", "{{{}}}", "{}.",
    r"\text{{{}}}",
)  # fmt: skip
"""Typesetting that means nothing, around an answer."""

WORDS = (
    "", "a", "kind", "cases", "stdin", "call", "assert", "checker", "input", "output", "inputs",
    "outputs", "fn_name", "code", "args", "testtype", "functional", "base_input", "plus_input",
    "canonical_solution", "entry_point", "test_code", "metadata", "func_name", "problem", "answer",
    "tests", "role", "user", "content", "\\boxed{7}", "assert f(1) == 2", "def f(x): pass",
    "def check(candidate): assert candidate(1) == 2", "2024-01-01", "time_limit_s", "memory_mb",
    "\ud800", "\x00", "\u2028", "../../etc/passwd", "e\u0301", "[1]", "{", "null", "NaN",
)  # fmt: skip
names = st.sampled_from(WORDS)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | names | st.just(10**4000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("problem", "answer", "tests", "source", "date", "id", "messages")
rows = st.dictionaries(st.sampled_from(FIELDS) | texts, json_values, max_size=6)

_plain = (
    pa.string(), pa.large_string(), pa.binary(), pa.string_view(), pa.int64(), pa.int8(),
    pa.uint64(), pa.float64(), pa.float16(), pa.bool_(), pa.null(), pa.date32(), pa.timestamp("ns"),
    pa.timestamp("us", tz="UTC"), pa.decimal128(38, 10), pa.duration("ms"), pa.time64("ns"),
    pa.dictionary(pa.int32(), pa.string()),
)  # fmt: skip
arrow_types = st.recursive(
    st.sampled_from(_plain),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda t: pa.map_(pa.string(), t)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{i}", t) for i, t in enumerate(types)])
        ),
    ),
    max_leaves=4,
)
_fields = st.tuples(st.sampled_from(FIELDS), arrow_types)
schemas = st.lists(_fields, min_size=1, max_size=5, unique_by=lambda f: f[0]).map(pa.schema)

words = st.text(string.ascii_lowercase + "_", max_size=12)
overrides = st.tuples(
    st.lists(st.sampled_from(["sft", "judge", "seed", "collect", "sources", "0", "epochs"]) | words,
             min_size=1, max_size=4),
    texts,
).map(lambda pair: f"{'.'.join(pair[0])}={pair[1]}")  # fmt: skip
