"""Answers that were recorded elsewhere, in the place of a model's: each of the problem whose id is
its normalised prompt's, by its place among those of that prompt. Files are streamed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...configs.settings.engines import EngineSettings
from ...eval.benchmarks.grades import Grade
from ...eval.records import FinishReason, Rejected, Sample, problem_id
from ...eval.records.row_files import Row, find_files, read_rows
from ...eval.thinking import foreign_tags, name_tags, with_think_tags
from .interface import Engine, Request


class RecordedEngine(Engine):
    """Yields the recordings that were asked for; what was not recorded does not come back."""

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """One pass over the files; memory holds the requests, not the texts."""
        wanted = {r.key for r in requests}
        for row in recordings(self.settings):
            if isinstance(row, Recording):
                sample = row.sample
                if (sample.problem_id, sample.index) in wanted:
                    yield sample


class Recording(NamedTuple):
    sample: Sample
    grade: Grade | None  # as published, where `grade_field` names one


def recordings(settings: EngineSettings) -> Iterator[Recording | Rejected]:
    """Every row of the recorded files, in order; a row that cannot be used says why."""
    seen: Counter[str] = Counter()
    for file in find_files(settings.files, Path(), "engine.files"):
        for row in read_rows(file):
            try:
                recording = _recording(row, settings, seen)
            except ValueError as error:
                reason = f"{row.file} row {row.number}: {error}"
                yield Rejected(id="", source=row.file, reason=reason, row=row.raw or str(row.value))
            else:
                seen[recording.sample.problem_id] += 1
                yield recording


def _recording(row: Row, settings: EngineSettings, seen: Counter[str]) -> Recording:
    if row.value is None:
        raise ValueError(row.error)
    prompt = problem_id(_text(row.value, settings.prompt_field))
    text, finish = mapped_text(_text(row.value, settings.text_field), settings)
    correct = row.value.get(settings.grade_field) if settings.grade_field else None
    if correct not in (None, True, False):  # 0 and 1 are equal to False and True
        mistake = f"{correct!r} is no grade; true, false, 1 or 0 are"
        raise ValueError(f"field {settings.grade_field}: {mistake}")
    model = str(row.value.get(settings.model_field) or settings.model or "recorded")
    who = {"problem_id": prompt, "index": seen[prompt], "model": model}
    grade = None if correct is None else Grade(**who, correct=bool(correct))
    return Recording(Sample(**who, text=text, finish_reason=finish), grade)


def mapped_text(text: str, settings: EngineSettings) -> tuple[str, FinishReason]:
    """The text with our think tags; one whose thinking never ends was cut: `length`."""
    finish: FinishReason = "stop" if text.strip() else "empty"
    if settings.think_tags:
        opened, closed = settings.think_tags
        if opened in text and closed not in text:
            finish = "length"
        text = with_think_tags(text, settings.think_tags)
    elif tags := foreign_tags(text):  # the judge would take their thinking for the answer
        raise ValueError(name_tags(settings.model or "its model", tags))
    for tag in settings.solution_tags or ():
        text = text.replace(tag, "")
    if settings.think_prefill and not text.lstrip().startswith(settings.think_prefill.strip()):
        text = settings.think_prefill + text
    return text.strip(), finish


def _text(value: dict[str, Any], name: str) -> str:
    """The text at `name`, or at the first of its alternatives `a|b` that the row has."""
    text = next((v for n in name.split("|") if (v := value.get(n)) is not None), None)
    if not isinstance(text, str):
        kind = "missing" if text is None else f"must be text, this is a {type(text).__name__}"
        raise ValueError(f"field {name}: {kind}")
    return text
