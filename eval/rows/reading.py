"""Files of problems, whoever wrote them: what is read from each row, and a line that says it.

gsm8k.jsonl: 1,319 math problems · prompt: question · gold: answer after "####" · first: …
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...configs.settings.explain import ConfigError
from ...configs.settings.sources import Source
from ..answers import writable
from ..records import Problem
from ..records.row_files import Row, read_rows, stem
from .fields import NAMES, folded, quoted
from .gold_field import A_LETTER, place_of
from .gold_text import A_PROGRAM
from .shape import described, own_problem, recognised
from .to_problem import Tables, to_problem

SETTINGS = {
    "prompt": "prompt_field", "gold": "answer_field", "answer": "answer_field",
    "tests": "tests_field", "options": "options_field", "function": "fn_name_field",
    "after": "answer_after", "date": "date_field", "checker": "checker_field",
}  # fmt: skip
"""What `--fields` calls the fields of a Source."""
OWN = "rows of klear"
MOST_SHOWN = 3
ROWS_TRIED = 20


class Reading(NamedTuple):
    file: str
    problems: list[Problem]
    ways: Counter[str]  # How rows were read, in words → how many.
    rejected: list[str]
    letters: list[int]  # Rows whose gold is a letter without its options.

    def lines(self) -> list[str]:
        line = reading_line(self.file, self.ways, self.problems[0])
        return [line, *letter_lines(self.letters), *rejected_lines(self.rejected)]


def read_row(
    row: dict[str, Any], source: Source, tables: Tables | None = None
) -> tuple[Problem, str]:
    """The problem in a row, and in words how it was read by shape. Raises ValueError."""
    if not source.by_shape:
        return to_problem(row, source, tables), ""
    if own := own_problem(row, source):
        return own, f"{own.domain}|{OWN}"
    named, remark = recognised(row, source)
    return to_problem(row, named, tables), f"{named.domain}|{described(named)}{remark}"


def numbered(rows: Iterable[Row], source: Source) -> Source:
    """The source, with the number that the `rows` of a file count options from: 0 where some row
    names one so, 1 where one is named by their count; both: nobody can tell. Raises ValueError for
    damage."""
    places = set[str]()
    for number, row in enumerate(rows if source.by_shape else ()):
        if number == ROWS_TRIED and not places - {""}:
            break
        with suppress(ValueError, RecursionError):
            places.add(place_of(row.value or {}, source))
    first = {"zero": 0, "count": 1}
    shown = {first[place] for place in places & first.keys()}
    if not shown or "options_from" in source.model_fields_set:
        return source
    return source.model_copy(update={"options_from": -1 if len(shown) > 1 else shown.pop()})


def read_problems(path: Path, source: Source) -> Reading:
    """All rows of one file. Raises ConfigError when none is a problem, with what would help, or
    when the rows are programs without tests; ValueError when the file is damaged."""
    reading, source = Reading(path.name, [], Counter(), [], []), numbered(read_rows(path), source)
    for row in read_rows(path):
        try:
            if row.value is None:
                raise ValueError(row.error)
            problem, way = read_row(row.value, source)
        except (ValueError, RecursionError) as error:
            reading.rejected.append(f"row {row.number}: {writable(str(error))}")
            continue
        reading.problems.append(problem)
        way = way or f"{problem.domain}|{described(source)}"  # the fields that somebody named
        reading.ways[way] += 1
        reading.letters.extend([row.number] if way.endswith(A_LETTER) else [])
    refuse_file(path, source, len(reading.problems), reading.rejected)
    return reading


def refuse_early(path: Path, source: Source) -> None:
    """Raises ConfigError as `read_problems` does; reads more than the first rows only in doubt."""
    kept, programs, source = 0, False, numbered(read_rows(path), source)
    for row in islice(read_rows(path), ROWS_TRIED):
        try:
            read_row(row.value or {}, source)
            kept += 1
        except (ValueError, RecursionError) as error:
            programs |= A_PROGRAM in str(error)
    if programs or not kept:
        read_problems(path, source)


def refuse_file(path: Path, source: Source, kept: int, rejected: list[str]) -> None:
    """Raises ConfigError for a file without a problem, or of programs without tests."""
    programs = source.by_shape and any(A_PROGRAM in reason for reason in rejected)
    if kept and not programs:
        return
    what = "holds no problem" if rejected else "holds no problem: it has no rows"
    absent = any("looked for" in reason for reason in rejected[:ROWS_TRIED])
    fix = suggested(path, source) if absent and not programs else ""
    if programs:
        what = "holds programs as answers and no tests, so nothing can judge answers to it"
        fix = "for its prompts alone: a source of collect with gold_optional: true"
    raise ConfigError([f"{path}: {what}", *rejected[:MOST_SHOWN], *filter(None, [fix])])


def suggested(path: Path, source: Source) -> str:
    """Fields to name on the command line with which rows of the file can be read; else empty."""
    rows = [row.value for row in islice(read_rows(path), ROWS_TRIED) if row.value]
    kinds = str | int | float
    fields = [n for n, v in (rows[0] if rows else {}).items() if isinstance(v, kinds) and n != ""]
    fields = [name for name in fields if folded(name) not in map(folded, NAMES["about"])]
    length = {name: sum(len(str(row.get(name))) for row in rows) for name in fields}
    base = Source(name=source.name, files=source.files, by_shape=True)
    for prompt in sorted(fields, key=lambda name: -length[name])[:MOST_SHOWN]:
        for gold in sorted(fields, key=lambda name: length[name]):
            trial = base.model_copy(update={"prompt_field": prompt, "answer_field": gold})
            if prompt != gold and all(_reads(row, trial) for row in rows):
                return f"try: --fields prompt={quoted(prompt)},gold={quoted(gold)}"
    return ""


def _reads(row: dict[str, Any], source: Source) -> bool:
    with suppress(ValueError, RecursionError):
        return bool(read_row(row, source))
    return False


def source_of(name: str, file: Path, fields: str = "", use: str = "") -> Source:
    """A source for one file: by shape, with the fields of `fields` (`prompt=Q,gold="Correct
    Answer"`), or with those of a catalogue entry. Raises ConfigError."""
    named = dict[str, Any]()
    for part in filter(None, (text.strip() for text in fields.split(","))):
        key, equals, field = part.partition("=")
        target = SETTINGS.get(key.strip(), key.strip())
        if not equals or target not in Source.model_fields:
            names = ", ".join(SETTINGS)
            raise ConfigError([f"--fields {part}: write NAME=FIELD; names are {names}"])
        value = field.strip().strip("\"'")
        named[target] = int(value) if target == "options_from" and value in ("0", "1") else value
    reading = {"use": use} if use else {"by_shape": True}
    domain = {"domain": "code"} if "tests_field" in named and not use else {}
    values = {"name": name, "files": [str(file.absolute())], **reading, **domain, **named}
    try:
        return Source.model_validate(values)
    except ValueError as error:
        raise ConfigError([f"{file}: {error}"]) from error


def named_files(paths: list[Path]) -> dict[str, Path]:
    """Files by a name each: that before the suffix, or the path where two would be the same."""
    times = Counter(stem(path) for path in paths)
    return {stem(path) if times[stem(path)] == 1 else str(path): path for path in paths}


def reading_line(file: str, ways: Mapping[str, int], first: Problem) -> str:
    kinds = []
    for way, count in sorted(ways.items(), key=lambda item: -item[1]):
        domain, _, words = way.partition("|")
        kinds.append(f"{count:,} {domain} problem{'s' * (count != 1)} · {words}")
    tests = first.tests
    gold = first.answer or (f"{len(tests.cases)} {tests.kind} tests" if tests else "no gold")
    return f'{file}: {"; ".join(kinds)} · first: "{_cut(first.prompt, 40)}" → {_cut(gold, 40)}'


def letter_lines(rows: list[int]) -> list[str]:
    shown = ", ".join(map(str, rows[:MOST_SHOWN])) + ", …" * (len(rows) > MOST_SHOWN)
    text = f"  warning: the gold of row {shown} is a letter, and the row has no options"
    return [text] if rows else []


def rejected_lines(rejected: list[str]) -> list[str]:
    kinds = dict[str, str]()
    for text in rejected:
        kinds.setdefault(text.partition(": ")[2].partition(":")[0], text)
    if not rejected:
        return []
    count = f"{len(rejected):,} row{'s' * (len(rejected) != 1)} rejected"
    more = [f"  {text[:300]}" for text in kinds.values()]
    return [f"  {count}; the first of each kind:", *more[:MOST_SHOWN]]


def _cut(text: str, most: int) -> str:
    text = " ".join(writable(text).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
