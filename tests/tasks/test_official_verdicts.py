"""LiveCodeBench's verdict beside ours, in the results of an evaluation."""

import pytest

from configs.settings.evaluation import PAPER_PROTOCOLS, BenchmarkProtocol
from configs.settings.judging import JudgeRuntime, JudgeSettings
from eval.benchmarks.benchmarks import score_benchmark
from eval.programs.lcb_runner import official
from eval.records import Problem, Sample
from eval.tables import count_rows, write_table
from tasks.models.evaluate import judge_all
from tests.eval.evaluations_by_hand import STATEMENT

ADD = Problem.model_validate(
    {
        "domain": "code",
        "prompt": "Print the sum of two numbers.",
        "source": "lcb",
        "tests": {"kind": "stdin", "cases": [{"input": "1 2\n", "output": "3\n"}]},
    }
)
OTHER = ADD.model_copy(update={"id": "other", "source": "elsewhere"})
PROGRAMS = {
    0: "print(sum(map(int, input().split())))",  # right by both
    1: "print(sum(map(int, open(0).read().split())))",  # the official runner has no descriptor 0
    2: "print(4)",  # wrong by both
}


def sample(problem: Problem, index: int) -> Sample:
    text = f"<think>x</think>\n```python\n{PROGRAMS[index]}\n```"
    return Sample(problem_id=problem.id, index=index, model="m", text=text)


def test_both_verdicts_are_in_the_result_and_only_official_benchmarks_are_judged_twice(tmp_path):
    rows = [sample(p, i) for p in (ADD, OTHER) for i in PROGRAMS]
    write_table(tmp_path / "problems.parquet", Problem, [ADD, OTHER])
    write_table(tmp_path / "samples.parquet", Sample, rows)
    settings = JudgeSettings(runtime=JudgeRuntime(workers=1))

    ours = judge_all(tmp_path, settings)
    published = judge_all(tmp_path, official(settings), "official_scores", {ADD.id})

    assert count_rows(tmp_path / "official_scores.parquet") == len(PROGRAMS)
    protocol = BenchmarkProtocol(name="lcb", k=3, official=True)
    samples = {(s.problem_id, s.index): s for s in rows}
    result = score_benchmark(protocol, [ADD], samples, ours, STATEMENT, official=published)
    assert result.avg == pytest.approx(2 / 3)
    assert result.official == pytest.approx(1 / 3)
    assert result.disagreements == 1
    without = score_benchmark(protocol, [ADD], samples, ours, STATEMENT)
    assert (without.official, without.disagreements) == (None, 0)


def test_every_livecodebench_protocol_of_the_paper_asks_for_both():
    assert {p.name for p in PAPER_PROTOCOLS if p.official} == {
        p.name for p in PAPER_PROTOCOLS if p.source == "livecodebench"
    }
