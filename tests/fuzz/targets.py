"""What is fuzzed, and what must hold of it whatever the bytes: each target takes bytes and raises
when a promise is broken. Documented errors are part of the promise and are caught here.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

from fuzz.draw import Draw

from configs.loading import load_profile
from configs.settings.explain import ConfigError
from configs.settings.overrides import read_yaml
from configs.settings.sources import Source
from eval.answers import extract_boxed, extract_program, has_closed_think
from eval.math_answers.countdown import verify_countdown
from eval.math_answers.forms import enclosing, equation_sides, form_of
from eval.math_answers.spelling import spell
from eval.math_answers.verify import quick_verdict
from eval.programs.compare import equal_json, same_json, same_text, same_tokens
from eval.programs.formats import parse_suite, pickled_text, unpack_tests
from eval.programs.lcb_runner import same_text as same_as_lcb
from eval.records import Problem, Rejected
from eval.row_files import Row, read_rows
from eval.tables import read_table, write_table
from tasks.data.collect_part import checked
from tasks.store.manifest import MANIFEST
from tasks.store.store import Store
from tests.tasks.pages_by_hand import page_of

SCRATCH = Path(tempfile.mkdtemp(prefix="klear-fuzz-"))
SOURCES = [
    Source(name="m", files=("f",), domain="math"),
    Source(name="b", files=("f",), domain="math", answer_in_box=True, date_field="date"),
    Source(name="c", files=("f",), domain="code", time_limit_field="time_limit_s"),
    Source(name="p", files=("f",), domain="code", tests_field="."),
]


def _says(name: str, error: Exception) -> None:
    """The message is there and names its file."""
    assert str(error)
    assert name in str(error)


def answers(data: bytes) -> None:
    """Extraction never raises, and what stands in the think block does not count."""
    draw = Draw(data)
    text = draw.pieces(200) + draw.rest()
    has_closed_think(text)
    for find in (extract_boxed, extract_program):
        found = find(text)
        assert (found.answer is None) == bool(found.reason)
        judged = text.rpartition("</think>")[2]
        if "<think>" not in judged:
            noise = "<think>\\boxed{0} ```python\nprint(0)\n``` "
            assert find(noise + "</think>" + judged) == find(judged) == found


def math_answers(data: bytes) -> None:
    """The quick verdict never raises, an answer equals itself, and spaces around it are nothing."""
    draw = Draw(data)
    gold, answer = draw.pieces(), draw.pieces() + draw.rest()
    verdict = quick_verdict(gold, answer)
    assert verdict is None or verdict.verdict in ("AC", "WA", "IE")
    if gold.strip():
        same = quick_verdict(gold, f"  {gold}\n")
        assert same is not None
        assert same.verdict == "AC"
    padded = quick_verdict(gold, f" {answer} ")
    assert (padded and padded.verdict) == (verdict and verdict.verdict)


def math_shapes(data: bytes) -> None:
    """Spelling and taking apart never raise; spelling is done once."""
    text = Draw(data).pieces(40)
    body = spell(text).body
    form = form_of(body)
    assert form.kind != "scalar" or len(form.pieces) == 1
    equation_sides(body)
    enclosing(body)


def countdown(data: bytes) -> None:
    """An expression is right, wrong, or the target is none."""
    draw = Draw(data)
    numbers = [draw.byte() for _ in range(draw.byte() % 4)]
    found = verify_countdown(draw.pieces() + draw.rest(), str(draw.byte()), numbers)
    assert found.verdict in ("AC", "WA")


def outputs(data: bytes) -> None:
    """Comparing never raises; a text equals itself, and layout around it does not count."""
    draw = Draw(data)
    ours, theirs = draw.pieces(12), draw.pieces(12) + draw.rest()
    for same in (same_text, same_tokens, same_as_lcb):
        assert same(theirs, theirs)
        assert same(ours, theirs) == same(f"{ours}\n\n", f"\n {theirs}")


def returned_values(data: bytes) -> None:
    """A value equals itself, as text and as JSON of any spacing."""
    value = Draw(data).value()
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of thousands of digits
        return
    for same in (same_json, equal_json):
        assert same(text.encode(), json.loads(text)) or "NaN" in text
        assert same(json.dumps(value, indent=1).encode(), json.loads(text)) or "NaN" in text
        same(data, json.loads(text))


def suites(data: bytes) -> None:
    """Tests of any form are a suite or a ValueError."""
    draw = Draw(data)
    value = draw.value() if draw.byte() % 4 else draw.rest()
    try:
        suite = parse_suite(value, fn_name=draw.text())
    except (ValueError, RecursionError):
        return
    assert suite.cases is not None


def packed_suites(data: bytes) -> None:
    """Packed tests: one text, or a ValueError, and never a pickle loaded."""
    with suppress(ValueError):
        assert isinstance(pickled_text(data), str)
    with suppress(ValueError):
        unpack_tests(data.decode("latin-1"))


def rows(data: bytes) -> None:
    """Any row is a Problem that a table can hold and give back, or a reject with its place."""
    draw = Draw(data)
    source = SOURCES[draw.byte() % len(SOURCES)]
    value = {"problem": draw.text(), "answer": draw.value(2), "tests": draw.value()}
    extra = draw.value()
    row = value | extra if isinstance(extra, dict) else value
    made = checked(Row("f", 3, row), source, {})
    kind = Problem if isinstance(made, Problem) else Rejected
    path = SCRATCH / "rows.parquet"
    write_table(path, kind, [made])
    assert list(read_table(path, kind)) == [made]
    if isinstance(made, Rejected):
        assert made.reason.startswith("f row 3: ")


def row_files(data: bytes) -> None:
    """A file of any bytes gives rows, rows with an error, or a ValueError that names the file."""
    suffix = (".jsonl", ".json", ".jsonl.gz", ".parquet")[data[0] % 4 if data else 0]
    path = SCRATCH / f"file{suffix}"
    path.write_bytes(data[1:])
    try:
        for row in read_rows(path):
            assert (row.value is None) == bool(row.error)
    except ValueError as error:
        _says(path.name, error)


def settings(data: bytes) -> None:
    """Overrides and profiles of any bytes: settings, or a ConfigError."""
    draw = Draw(data)
    keys = ("seed", "sft", "sft.epochs", "collect.sources.0.limit", "judge", "data.root", "profile")
    key = keys[draw.byte() % len(keys)] if draw.byte() % 4 else draw.text()
    text = draw.rest()
    try:
        load_profile("tiny", [f"{key}={text}"])
    except ConfigError as error:
        _says("", error)
    path = SCRATCH / "profile.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        read_yaml(path)
    except ConfigError as error:
        _says("profile.yaml", error)


def manifests(data: bytes) -> None:
    """A manifest of any bytes is a result or a reason, never an exception."""
    folder = SCRATCH / "store" / "stage" / "key"
    folder.mkdir(parents=True, exist_ok=True)
    draw = Draw(data)
    text = data
    if draw.byte() % 2:
        found = {
            "format": 1, "stage": "stage", "version": 1, "key": "key", "digest": "",
            "settings": {}, "files": {}, "seconds": 1, "pipeline_run": "", "created": "",
        }  # fmt: skip
        name = list(found)[draw.byte() % len(found)]
        found[name] = draw.value() if draw.byte() % 3 else {draw.text(): {"bytes": 0, "sha256": ""}}
        try:
            text = json.dumps(found).encode()
        except ValueError:
            return
    (folder / MANIFEST).write_bytes(text)
    artifact, wrong = Store(SCRATCH / "store").find("stage", "key", verify=True)
    assert (artifact is None) == bool(wrong)


class _Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


OURS = _Tags(page_of("x").html()).seen | {"hr"}  # emphasis on nothing


def pages(data: bytes) -> None:
    """No text becomes an element of the page or an attribute that runs."""
    page = page_of(Draw(data).text() + data.decode("utf-8", "replace"))
    assert _Tags(page.html()).seen <= OURS


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        answers, math_answers, math_shapes, countdown, outputs, returned_values, suites,
        packed_suites, rows, row_files, settings, manifests, pages,
    )
}  # fmt: skip
