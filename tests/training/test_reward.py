"""The reward of RL: withheld tests, random rewards, and the alarms of a policy that games it."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerState

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings, RolloutJudgeSettings
from klear.configs.settings.training import RLSettings
from klear.eval.judge.judge import Judge, split_withheld_tests
from klear.eval.records import Problem
from klear.eval.records.tables import write_table
from klear.training.alarms import FORMAT, GAP, LENGTH, alarms
from klear.training.callbacks import WriteMetrics
from klear.training.launch import result_files
from klear.training.launch.jobs import RLJob
from klear.training.rl import train as rl
from klear.training.rl.train import JudgeReward
from tests.cluster.fixed_answers import LengthJudge
from tests.training.killed_child import RL

RUNTIME = JudgeRuntime(workers=1)
ADD = "a, b = map(int, input().split())\nprint(a + b)"
WRONG = "print(-1)"
WITHHELD = 3


def adding(name: str, tests: int) -> Problem:
    cases = [{"input": f"{i} {i * i}\n", "output": f"{i + i * i}\n"} for i in range(tests)]
    suite = {"kind": "stdin", "cases": cases}
    return Problem.model_validate({"domain": "code", "prompt": name, "tests": suite})


PROBLEMS = [adding(f"Add two numbers, {i}.", 8) for i in range(2)]


def turn(program: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": f"<think>hm</think>\n```python\n{program}\n```"}]


def special_cased(problem: Problem) -> str:
    """A program that prints the expected outputs of the tests that pay."""
    assert problem.tests
    outputs: Any = {case.input: case.output for case in problem.tests.cases}  # type: ignore[union-attr]
    return f"import sys\nprint({outputs!r}.get(sys.stdin.read(), 0))"


@pytest.mark.parametrize(("tests", "withheld"), [(8, 3), (5, 2), (1, 0)])
def test_withheld_tests_are_the_same_ones_every_time_and_at_most_half(tests, withheld):
    problem = adding("Add.", tests)
    assert problem.tests
    rewarded, apart = split_withheld_tests(problem, problem.tests, WITHHELD)
    assert (rewarded, apart) == split_withheld_tests(problem, problem.tests, WITHHELD)
    assert rewarded.tests
    assert apart.tests
    assert len(apart.tests.cases) == withheld
    both = {*map(repr, rewarded.tests.cases), *map(repr, apart.tests.cases)}
    assert both == {*map(repr, problem.tests.cases)}


@pytest.mark.parametrize("learned", ["honest", "special-cased"])
def test_the_gap_alarm_rings_for_special_cased_tests_and_not_for_honest_programs(
    learned, tmp_path, capsys
):
    """One answer in four adds; after seven steps the other three pass what pays, in either way."""
    job: Any = SimpleNamespace(out=tmp_path, settings=RL)
    (tmp_path / result_files.LOGS).mkdir()
    (tmp_path / result_files.SCRATCH).mkdir()
    log = WriteMetrics(job, result_files.ProgressFile(tmp_path), 1, 0)
    with Judge(JudgeSettings(runtime=RUNTIME)) as judge:
        reward = JudgeReward(judge, PROBLEMS, WITHHELD)
        for step in range(1, 12):
            logged: dict[str, list[float]] = {}
            answers, ids = [], []
            for problem in reward.problems.values():
                paid = ADD if learned == "honest" else special_cased(problem)
                ids += [problem.id] * 4
                answers += map(turn, [ADD, *[WRONG if step <= 7 else paid] * 3])
            rewards = reward(
                completions=answers, problem_id=ids, trainer_state=TrainerState(global_step=step),
                log_metric=lambda name, value: logged.setdefault(name, []).append(value),  # noqa: B023
            )  # fmt: skip
            assert rewards[:4] == [1, *[0 if step <= 7 else 1] * 3]
            means = {name: sum(values) / len(values) for name, values in logged.items()}
            log.on_log(None, TrainerState(global_step=step), None, logs=means)
    lines = [line["metrics"] for line in result_files.read_lines(tmp_path / result_files.METRICS)]
    gamed = learned == "special-cased"
    assert [line["withheld/pass_rewarded"] for line in lines] == [0.25] * 7 + [1.0] * 4
    after = 0.25 if gamed else 1.0
    assert [line["withheld/pass_all"] for line in lines] == [0.25] * 7 + [after] * 4
    assert [line["withheld/gap"] for line in lines] == [0.0] * 7 + [1 - after] * 4
    # the median of five lines moves with the third
    assert [step for step, line in enumerate(lines, 1) if GAP in line] == [10, 11] * gamed
    assert ("withheld gap alarm at step 10" in capsys.readouterr().out) == gamed
    assert ("WITHHELD GAP ALARM" in log._note) == gamed


def test_programs_that_ran_beside_sampling_are_not_run_again(monkeypatch):
    """However far apart equal ones are, and on the tests that the step draws."""
    settings, submitted = RolloutJudgeSettings(max_tests=2, runtime=RUNTIME), []
    texts = [f"{ADD}\n# {i % 30}" for i in range(60)] + [WRONG]
    with Judge(settings, remember=len(texts)) as judge:
        submit = judge._code.submit
        monkeypatch.setattr(judge._code, "submit", lambda *a: submitted.append(a) or submit(*a))
        reward = JudgeReward(judge, PROBLEMS)
        answers = [turn(text) for text in texts]
        for (answer,) in reversed(answers):
            reward.begin(PROBLEMS[0].prompt, answer["content"], 7)
        assert len(submitted) == 31
        rewards = reward(
            completions=answers, problem_id=[PROBLEMS[0].id] * len(texts),
            trainer_state=TrainerState(global_step=7),
        )  # fmt: skip
    assert rewards == [1.0] * 60 + [0.0]
    assert len(submitted) == 31


@pytest.mark.parametrize(
    ("alarm", "metric", "usual", "quiet", "loud"),
    [
        (GAP, "withheld/gap", 0.1, (0.0, 0.29), (0.31, 1.0)),
        (LENGTH, "completions/mean_length", 100.0, (51.0, 199.0), (49.0, 201.0)),
        (FORMAT, "reward/format", 0.9, (0.71, 1.0), (0.69, 0.0)),
    ],
)
def test_an_alarm_rings_where_five_lines_left_the_usual_range_and_not_for_one(
    alarm, metric, usual, quiet, loud
):
    before = [{metric: usual}] * 5

    def rings(*values: float) -> bool:
        *lines, now = [*before, *({metric: v} for v in values)]
        return alarm in alarms(lines, now)

    assert not any(rings(*[v] * 5) for v in quiet)
    assert all(rings(*[v] * 5) for v in loud)
    assert not rings(usual, usual, usual, loud[1], loud[1])
    assert not any(alarms(before[n:], {metric: loud[1]}) for n in range(5))  # too early to say


def test_slow_drift_rings_for_the_gap_and_the_form_but_not_for_length():
    """Over 300 lines the running median follows any of them."""
    lines = [
        {
            "withheld/gap": i / 1000,
            "reward/format": 1 - i / 1000,
            "completions/mean_length": 100 + i,
        }
        for i in range(300)
    ]
    assert alarms(lines[:-1], lines[-1]).keys() == {GAP, FORMAT}


def test_random_rewards_follow_from_seed_step_problem_and_place_alone():
    def paid(seed: int, step: int, text: str = "a") -> list[float | None]:
        reward: Any = JudgeReward(LengthJudge(), PROBLEMS, random_share=0.3, seed=seed)  # type: ignore[arg-type]
        ids = [p.id for p in PROBLEMS for _ in range(500)]
        state = TrainerState(global_step=step)
        return reward(completions=[turn(text)] * 1000, problem_id=ids, trainer_state=state)

    one = paid(1, 4)
    assert one == paid(1, 4, "bb")  # another start, other answers
    assert one not in (paid(2, 4), paid(1, 8))
    assert one[:500] != one[500:]
    assert sum(one) / 1000 == pytest.approx(0.3, abs=3 * (0.3 * 0.7 / 1000) ** 0.5)  # type: ignore[arg-type]


def test_a_stage_trains_on_random_rewards_and_logs_the_verdicts(files, tmp_path):
    problems = tmp_path / "code.parquet"
    write_table(problems, Problem, [adding(f"Add {i}.", 4) for i in range(8)])
    few = {"domain": "code", "steps": 1, "checkpoint_steps": 1, "random_reward": 0.5}
    judge = RolloutJudgeSettings(withheld_tests=1, runtime=RUNTIME)
    job = RLJob(out=tmp_path, checkpoint=files["checkpoint"], problems=problems, seed=5,
                settings=RL.model_copy(update={**few, "judge": judge}))  # fmt: skip
    assert rl.run_rl(job)["rollouts_without_update"] == 0  # the judge pays all alike
    (line,) = result_files.read_lines(tmp_path / result_files.METRICS)
    assert line["metrics"]["reward/correct"] == line["metrics"]["withheld/pass_rewarded"] == 0
    assert line["metrics"].keys().isdisjoint({"withheld/gap", GAP})  # nothing passed
    before, after = ((f / "model.safetensors").read_bytes()
                     for f in (files["checkpoint"], tmp_path / "checkpoint"))  # fmt: skip
    assert before != after


def test_withheld_tests_of_math_are_refused():
    with pytest.raises(ValueError, match="withheld_tests is for domain=code"):
        RLSettings(judge=RolloutJudgeSettings(withheld_tests=1))
