"""Benchmarks from files of one's own: which file, and which of its fields mean what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.settings.evaluation import FOLDERS
from configs.settings.sources import Source, catalogue
from eval.records import Problem
from eval.row_files import SUFFIXES, read_rows
from eval.tables import read_table

PROMPTS = ("problem", "question", "prompt", "question_content", "query")
ANSWERS = ("answer", "expected_answer", "final_answer", "gt", "gold", "target")
BOXED = ("solution", "reference_solution", "response")
TESTS = ("tests", "private_test_cases", "input_output", "test_cases", "test")
DATES = ("date", "contest_date")
PREFERRED = ("test", "problems", "eval")
OF_THE_HUB = ("dataset", "revision", "config", "split", "data_files", "answer_field")


def source_of_files(name: str, files: Sequence[Path]) -> Source:
    """A Source for local files: fields as the catalogue says, where the first row has them.

    Raises ValueError that names the fields when none can be a prompt, an answer or tests.
    """
    row = _first_row(files[0])

    def one_of(names: Sequence[str], what: str) -> str:
        for field in names:
            if row.get(field) not in (None, ""):
                return field
        raise ValueError(
            f"{files[0]}: no field holds {what} ({', '.join(names)}); "
            f"the rows have: {', '.join(row)}"
        )

    entry = {k: v for k, v in catalogue().get(name, {}).items() if _fits(k, v, row)}
    fields: dict[str, Any] = {k: v for k, v in entry.items() if k not in OF_THE_HUB}
    fields |= {"name": name, "kind": "files", "files": [str(f) for f in files]}
    if "prompt_parts" not in entry:
        fields["prompt_field"] = str(entry.get("prompt_field") or one_of(PROMPTS, "a problem"))
    if date := entry.get("date_field") or next((d for d in DATES if d in row), ""):
        fields["date_field"] = date
    if entry.get("domain", _domain(row)) == "code":
        tests = entry.get("tests_field") or one_of(TESTS, "tests")
        fields |= {"domain": "code", "tests_field": tests}
        if "fn_name_field" not in entry and row.get("entry_point"):
            fields["fn_name_field"] = "entry_point"
    elif (answer := next((a for a in ANSWERS if a in row), None)) is not None:
        fields["answer_field"] = answer
    else:
        fields |= {"answer_field": one_of(BOXED, "an answer"), "answer_in_box": True}
    return Source.model_validate(fields)


def find_below(root: Path, name: str) -> list[Path]:
    """The file of source `name` below `root`: NAME.jsonl, or one in NAME/, test files first.

    Raises FileNotFoundError that says what was looked for.
    """
    names = FOLDERS.get(name, (name,))
    found = [f for n in names for end in SUFFIXES if (f := root / f"{n}{end}").is_file()]
    for folder in (root / n for n in names):
        inside = sorted(f for f in folder.glob("*") if f.name.endswith(SUFFIXES))
        found += [f for f in inside if f.name.startswith(PREFERRED)] or inside
    if not found:
        raise FileNotFoundError(
            f"{name}: no {' or '.join(f'{n}.jsonl, {n}/' for n in names)} below {root}; "
            f"name the file by --files {name}=PATH"
        )
    return found[:1]


def _fits(key: str, value: Any, row: dict[str, Any]) -> bool:
    """Whether what the catalogue says about a field is true of this file."""
    if key == "prompt_parts":
        return value[0]["field"] in row
    if not key.endswith("_field"):
        return True
    return all(part.partition(".")[0] in row for part in str(value).split("+") if part)


def _domain(row: dict[str, Any]) -> str:
    if row.get("domain") in ("math", "code"):
        return str(row["domain"])
    answered = any(row.get(f) not in (None, "") for f in (*ANSWERS, *BOXED))
    return "code" if not answered and any(t in row for t in TESTS) else "math"


def _first_row(file: Path) -> dict[str, Any]:
    for row in read_rows(file):
        if row.value is not None:
            return row.value
        raise ValueError(f"{file} row {row.number}: {row.error}")
    raise ValueError(f"{file} holds no rows")


def problems_of_file(file: Path, name: str) -> list[Problem] | None:
    """The problems of a file that already holds Problems (a stage's kept.parquet, say), under the
    source `name`; None when it holds rows of another kind."""
    try:
        if file.suffix == ".parquet":
            rows = list(read_table(file, Problem))
        else:
            rows = [Problem.model_validate(row.value) for row in read_rows(file)]
    except (KeyError, ValueError):  # a ValidationError is a ValueError
        return None
    return [problem.model_copy(update={"source": name}) for problem in rows]
