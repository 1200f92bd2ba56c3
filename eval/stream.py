"""`klear judge --stream`: one JSON line {"problem": …, "text": …} in, one Score line out.

Same order, and every line is answered as soon as the lines before it are: the first answer does
not wait for the end of the input. A line that is no problem gets a Score with verdict IE.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from pydantic import ValidationError

from configs.judging import JudgeSettings
from eval.answers import writable
from eval.judge import Judge
from eval.records import Problem, Score


def run_stream(lines: Iterable[str], out: TextIO, settings: JudgeSettings | None = None) -> int:
    """Judge every line of `lines`; returns the exit code 0.

    Raises SandboxUnavailable at the first code answer when programs cannot be isolated.
    """
    with Judge(settings) as judge:
        for score in _scores(judge, lines):
            out.write(score.model_dump_json() + "\n")
            out.flush()
    return 0


def _scores(judge: Judge, lines: Iterable[str]) -> Iterator[Score]:
    """Read in one thread and answer in another, at most a window apart."""
    pending: queue.Queue[Callable[[], Score] | Exception | None] = queue.Queue(judge.look_ahead)
    stopped = threading.Event()

    def read() -> None:
        try:
            for number, line in enumerate(lines):
                if stopped.is_set():
                    return
                if line.strip():
                    pending.put(_begin(judge, line, number))
            pending.put(None)  # the end
        except Exception as error:
            pending.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := pending.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item()
    finally:
        stopped.set()


def _begin(judge: Judge, line: str, number: int) -> Callable[[], Score]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict) or not isinstance(request.get("text"), str):
            raise ValueError('expected {"problem": {...}, "text": "..."}')
        if unknown := set(request) - {"problem", "text", "index"}:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        problem = Problem.model_validate(request.get("problem"))
        index = request.get("index", 0)
        if not isinstance(index, int):
            raise ValueError("index is not an integer")
        return judge.begin(problem, request["text"], index)
    except (ValueError, ValidationError, RecursionError) as error:
        score = _unreadable(line, number, _explain(error))
        return lambda: score


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'problem'}: {first['msg']}"
    return str(error)


def _unreadable(line: str, number: int, why: str) -> Score:
    return Score(
        problem_id=writable(_problem_id(line)),
        reward=None,
        correct=None,
        pass_rate=None,
        verdict="IE",
        reason=writable(f"line {number + 1} is not judged: {why}"[:500]),
    )


def _problem_id(line: str) -> str:
    try:
        return str(json.loads(line)["problem"]["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
