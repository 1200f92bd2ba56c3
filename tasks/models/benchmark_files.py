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


def source_of_files(name: str, files: Sequence[Path]) -> Source:
    """A Source for local files: fields as the catalogue says, where the first row has them.

    Raises ValueError that names the fields when none can be a prompt, an answer or tests.
    """
    row = _first_row(files[0])
    entry = {k: v for k, v in catalogue().get(name, {}).items() if _fits(k, v, row)}
    fields: dict[str, Any] = {"name": name, "kind": "files", "files": [str(f) for f in files]}
    if "prompt_parts" not in entry:
        prompt = str(entry.get("prompt_field") or _one_of(PROMPTS, row, files[0], "a problem"))
        fields["prompt_field"] = prompt
    date = entry.get("date_field") or next((d for d in DATES if d in row), "")
    if entry.get("domain", _domain(row)) == "code":
        tests = entry.get("tests_field") or _one_of(TESTS, row, files[0], "tests")
        fields |= {"domain": "code", "tests_field": tests}
        if "fn_name_field" not in entry and row.get("entry_point"):
            fields["fn_name_field"] = "entry_point"
    elif (answer := next((a for a in ANSWERS if a in row), None)) is not None:
        fields["answer_field"] = answer
    else:
        boxed = _one_of(BOXED, row, files[0], "an answer")
        fields |= {"answer_field": boxed, "answer_in_box": True}
    kept = {k: v for k, v in entry.items() if k not in ("dataset", "revision", "config", "split",
                                                        "data_files", "answer_field")}  # fmt: skip
    return Source.model_validate({**kept, **fields, **({"date_field": date} if date else {})})


def find_below(root: Path, name: str) -> list[Path]:
    """The file of source `name` below `root`: NAME.jsonl, or one in NAME/, test files first.

    Raises FileNotFoundError that says what was looked for.
    """
    names = FOLDERS.get(name, (name,))
    beside = [root / f"{n}{suffix}" for n in names for suffix in SUFFIXES]
    found = [f for f in beside if f.is_file()]
    for folder in (root / n for n in names):
        inside = sorted(f for f in folder.glob("*") if f.name.endswith(SUFFIXES))
        preferred = [f for f in inside if f.name.startswith(PREFERRED)]
        found += preferred or inside
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


def _one_of(names: Sequence[str], row: dict[str, Any], file: Path, what: str) -> str:
    for name in names:
        if row.get(name) not in (None, ""):
            return name
    raise ValueError(
        f"{file}: no field holds {what} ({', '.join(names)}); the rows have: {', '.join(row)}"
    )


def _first_row(file: Path) -> dict[str, Any]:
    for row in read_rows(file):
        if row.value is not None:
            return row.value
        raise ValueError(f"{file} row {row.number}: {row.error}")
    raise ValueError(f"{file} holds no rows")


def problems_of_file(file: Path, name: str) -> list[Problem] | None:
    """The problems of a file that already holds Problems (a stage's kept.parquet, say), under the
    source `name`; None when it holds rows of another kind."""
    found = []
    try:
        rows = (
            read_table(file, Problem)
            if file.suffix == ".parquet"
            else (Problem.model_validate(row.value) for row in read_rows(file))
        )
        for problem in rows:
            found.append(problem.model_copy(update={"source": name}))
    except (KeyError, ValueError):  # a ValidationError is a ValueError
        return None
    return found
