"""Early stop judges and the judge stage believes it, where grader, settings and problems agree."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from configs.data_stages import JudgeStageSettings, SampleSettings
from configs.engines import EarlyStop, EngineSettings
from configs.judging import JudgeSettings, RewardSettings
from eval.judge import Judge
from eval.records import Problem, Sample
from eval.tables import write_table
from tasks import asking, early_verdicts
from tasks.distill import distill
from tasks.judge import judge
from tasks.run import Run, active
from tasks.store import LOGS, Artifact, Store
from training.engines.interface import Request

PROMPTS, SAMPLES, AT_ONCE = 6, 4, 2


class Teacher:
    """Right on even prompts at once, never on odd ones; its last answer to each is lost."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Teacher":
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        for r in requests:
            box = 1 if int(r.prompt) % 2 == 0 else 2
            lost = r.index == SAMPLES - 1
            yield Sample(
                problem_id=r.problem_id, index=r.index, model="m",
                text="" if lost else f"<think>\nhm\n</think>\n\n\\boxed{{{box}}}",
                finish_reason="error" if lost else "stop",
            )  # fmt: skip


@pytest.fixture
def judged(monkeypatch) -> Counter[tuple[str, int]]:
    """How often the judge was asked about each answer."""
    seen: Counter[tuple[str, int]] = Counter()
    begin = Judge.begin

    def counted(self, problem, text, index, draw=0):
        seen[problem.prompt, index] += 1
        return begin(self, problem, text, index, draw)

    monkeypatch.setattr(Judge, "begin", counted)
    return seen


@pytest.fixture
def problems(tmp_path: Path) -> Artifact:
    (tmp_path / "problems").mkdir()
    rows = [Problem(domain="math", prompt=str(i), answer="1", source="s") for i in range(PROMPTS)]
    write_table(tmp_path / "problems" / "kept.parquet", Problem, rows)
    return Artifact.of_folder(tmp_path / "problems")


@pytest.fixture
def answers(tmp_path, problems, monkeypatch) -> Artifact:
    """Two samples of even prompts and four of odd ones, the fourth without a text."""
    monkeypatch.setattr(asking, "make_engine", Teacher)
    settings = SampleSettings(
        samples_per_prompt=SAMPLES, engine=EngineSettings(kind="scripted"),
        early_stop=EarlyStop(right=1, at_once=AT_ONCE),
    )  # fmt: skip
    with active(Run(store=Store(tmp_path / "store"))):
        return distill(problems, settings=settings)


def scored(out: Path, problems: Artifact, answers: Artifact, **settings: object) -> bytes:
    out.mkdir()
    mine = JudgeStageSettings(judge=JudgeSettings.model_validate(settings))
    judge.body(out, problems, answers, settings=mine)
    return (out / "scores.parquet").read_bytes()


def test_each_answer_is_judged_once_and_the_scores_are_those_of_judging_all(
    tmp_path, problems, judged, answers
):
    in_rounds = {(str(i), n) for i in range(PROMPTS) for n in range(AT_ONCE)}
    assert judged == dict.fromkeys(in_rounds, 1)
    reused = scored(tmp_path / "a", problems, answers)
    last = {(str(i), AT_ONCE) for i in range(1, PROMPTS, 2)}  # a last round is not judged early
    assert judged == dict.fromkeys(in_rounds | last, 1)
    (answers.folder / LOGS / early_verdicts.NAME).unlink()
    assert scored(tmp_path / "b", problems, answers) == reused
    assert judged == dict.fromkeys(in_rounds | last, 2)


@pytest.mark.parametrize("change", ["settings", "problems", "grader"])
def test_verdicts_of_another_judge_or_for_other_problems_are_not_believed(
    tmp_path, problems, judged, answers, monkeypatch, change
):
    settings = {}
    if change == "settings":
        settings = {"reward": RewardSettings(math_correct=2.0)}
    elif change == "problems":
        rows = [
            Problem(domain="math", prompt=str(i), answer="2", source="s") for i in range(PROMPTS)
        ]
        (tmp_path / "others").mkdir()
        write_table(tmp_path / "others" / "kept.parquet", Problem, rows)
        problems = Artifact.of_folder(tmp_path / "others")
    else:
        monkeypatch.setattr(early_verdicts, "GRADER_VERSION", early_verdicts.GRADER_VERSION + 1)
    judged.clear()
    scored(tmp_path / "a", problems, answers, **settings)
    even, odd = PROMPTS // 2 * 2, PROMPTS // 2 * (SAMPLES - 1)
    assert judged.total() == even + odd


def test_samples_without_early_stop_have_no_verdicts(tmp_path, problems):
    assert len(early_verdicts.EarlyVerdicts(problems, "any")) == 0
