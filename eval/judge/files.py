"""`klear judge`: answers from a file or a stream, one Score line for every answer, in order.
Problems are rows of any kind (`eval.rows`), samples records, in any format of `row_files`. A row
that is no problem is rejected with its place. What is no sample, or answers no problem here, gets a
Score with verdict IE and the reason."""

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from ...configs.settings.explain import ConfigError, explain
from ...configs.settings.judging import JudgeSettings
from ...configs.settings.sources import Source
from ..answers import writable
from ..records import Problem, Sample, Score
from ..records.row_files import Row, read_rows
from ..rows.fields import NAMES, field_of, first_of
from ..rows.gold_field import A_LETTER
from ..rows.reading import (
    OWN,
    letter_lines,
    numbered,
    read_row,
    reading_line,
    refuse_file,
    source_of,
)
from ..thinking import foreign_tags
from .ends import by_its_end, judged_text
from .judge import FutureScore, Judge


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    problem: Problem
    text: StrictStr
    index: StrictInt = 0


def judge_files(
    problems: Path, samples: Path, out: Path, settings: JudgeSettings, source: Source | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple["Counter[str]", list[str]]:  # fmt: skip
    """Write the scores to `out`, all or nothing; returns the count of each verdict, and why rows
    are no problems. `source` names their fields, else they are read by shape, on which `say` gets a
    line. Raises ConfigError for files that cannot be judged, OSError, and SandboxUnavailable."""
    if not out.absolute().parent.is_dir():
        raise ConfigError([f"{out}: its folder does not exist"])
    by_id, rejected, lines = _problems(problems, source or source_of(problems.name, problems))
    for line in lines:
        say(line)
    verdicts: Counter[str] = Counter()
    partial = out.with_name(f"{out.name}.partial")
    try:
        with Judge(settings) as judge, partial.open("w", encoding="utf-8") as file:
            for score in _in_order(judge, (_submit_row(judge, r, by_id) for r in _rows(samples))):
                file.write(score.model_dump_json() + "\n")
                verdicts[score.verdict] += 1
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return verdicts, rejected


def run_stream(lines: Iterable[str], out: TextIO, settings: JudgeSettings | None = None) -> None:
    """`klear judge --stream`: one JSON line {"problem": …, "text": …} in, one Score line out, each
    as soon as those before it are answered. Raises SandboxUnavailable."""
    with Judge(settings) as judge:
        texts = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        for score in _in_order(judge, (_submit_line(judge, *text) for text in texts)):
            out.write(score.model_dump_json() + "\n")
            out.flush()


def _in_order(judge: Judge, submitted: Iterator[FutureScore]) -> Iterator[Score]:
    """Submit in one thread and answer in another, at most a window apart."""
    pending: queue.Queue[FutureScore | Exception | None] = queue.Queue(judge.look_ahead)

    def read() -> None:
        try:
            for one in submitted:
                pending.put(one)
            pending.put(None)  # the end
        except Exception as error:
            pending.put(error)

    threading.Thread(target=read, daemon=True).start()
    while (item := pending.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item()


def _rows(path: Path) -> Iterator[Row]:
    try:
        yield from read_rows(path)
    except ValueError as error:  # damaged
        raise ConfigError([str(error)]) from error


def _problems(path: Path, source: Source) -> tuple[dict[str, Problem | str], list[str], list[str]]:
    """The problems by id, a text in place of a rejected one; all those texts; how rows were read.
    Foreign rows are found by their own id, else their number, and by the id of their prompt."""
    by_id: dict[str, Problem | str] = {}
    rejected, ways, first = list[str](), Counter[str](), None
    letters, source = list[int](), numbered(read_rows(path), source)
    for row in _rows(path):
        value = row.value or {}
        own_id = field_of(value, first_of(value, NAMES["ids"]))
        own = str(row.number if own_id in (None, "") else own_id)
        try:
            if row.value is None:
                raise ValueError(row.error)
            problem, way = read_row(row.value, source)
            first = first or problem
            ways[way] += 1
            letters += [row.number] if way.endswith(A_LETTER) else []
            is_ours = not way or way.endswith(OWN)
            for name in {problem.id} if is_ours else {problem.id, own}:
                same = problem.model_copy(update={"id": name})
                if by_id.setdefault(name, same) != same:
                    raise ValueError(f"another problem has the id {name!r}")
        except (ValueError, RecursionError) as error:
            ours = isinstance(error, ValidationError)
            why = explain(error, Problem)[0] if ours else str(error)
            rejected.append(f"{path}:{row.number}: {why}")
            by_id[own] = rejected[-1]
    rows = [text.removeprefix(f"{path}:") for text in rejected]
    refuse_file(path, source, ways.total(), [f"row {row}" for row in rows])
    other = {*ways} - {"", f"math|{OWN}", f"code|{OWN}"}
    lines = [reading_line(path.name, ways, first)] if other and first else []
    return by_id, rejected, [*lines, *letter_lines(letters)]


def _submit_row(judge: Judge, row: Row, problems: dict[str, Problem | str]) -> FutureScore:
    value = row.value or {}
    try:
        sample = Sample.model_validate(row.value)
        problem = problems.get(sample.problem_id)
        if problem is None:
            why = f"answers {sample.problem_id!r}, which is no problem here"
        elif isinstance(problem, str):
            why = f"its problem is rejected: {problem}"
        elif tags := foreign_tags(sample.text):
            why = f"it thinks in {tags[0]}…{tags[1]}, which would be judged: write <think>…</think>"
        else:
            pending = judge.submit(problem, judged_text(sample), sample.index)
            return lambda: by_its_end(pending(), sample)
    except ValidationError as error:
        why = row.error or explain(error, Sample)[0]
    return _unjudged(f"{row.file}:{row.number}", why, value.get("problem_id"), value.get("index"))


def _submit_line(judge: Judge, number: int, line: str) -> FutureScore:
    value: Any = None
    try:
        value = json.loads(line)
        request = _Request.model_validate(value)
        return judge.submit(request.problem, request.text, request.index)
    except ValidationError as error:
        why = f'{explain(error, _Request)[0]}; expected {{"problem": {{...}}, "text": "..."}}'
    except (ValueError, RecursionError) as error:
        why = str(error)
    problem = value.get("problem") if isinstance(value, dict) else None
    name = problem.get("id") if isinstance(problem, dict) else None
    return _unjudged(f"line {number}", why, name)


def _unjudged(position: str, why: str, problem_id: object, index: object = 0) -> FutureScore:
    name, number = writable(str(problem_id or "")), index if isinstance(index, int) else 0
    reason = writable(f"{position} is not judged: {why}"[:500])
    score = Score(problem_id=name, index=number, verdict="IE", reason=reason)
    return lambda: score
