"""The generated families: problems, split, a teacher, and which answers make the target."""

import random
import re
from pathlib import Path

import pytest
import yaml

from klear.configs.settings.engines import EngineSettings
from klear.eval.families import by_example, countdown
from klear.eval.families.countdown import verify_countdown
from klear.eval.records import Problem

FAMILIES = [countdown, by_example]
PERFECT = EngineSettings(
    kind="scripted", error_rate=0, give_up_rate=0, brief_rate=0, max_lines=200, guidance=0.5
)


def problems(family, size=200, split="train", seed=0) -> list[Problem]:
    return list(family.generate(random.Random(seed), size, split))


def boxed(text: str) -> str:
    return re.findall(r"\\boxed\{(.*)\}", text)[-1]


def run_program(text: str, case_input: str) -> str:
    """Evaluate the two-line program of the by_example family without a sandbox."""
    expression = re.findall(r"\nprint\((.*)\)\n```", text)[-1]
    a, b = map(int, case_input.split())
    return str(eval(expression, {"a": a, "b": b, "max": max, "min": min}))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_never_come_twice_and_a_longer_run_begins_with_the_shorter(family):
    shorter = problems(family, 1000)
    assert len({p.id for p in shorter}) == 1000
    assert shorter[:50] == problems(family, 50) != problems(family, 50, seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_train_and_test_never_share_a_problem(family):
    """Nor a permutation of its numbers."""

    def of(problem: Problem) -> tuple[object, ...]:
        return tuple(sorted(problem.numbers or ())), problem.answer or problem.prompt

    train, test = problems(family, 1500, "train"), problems(family, 500, "test", seed=9)
    assert not {of(p) for p in train} & {of(p) for p in test}


def test_countdown_says_when_there_are_too_few_problems():
    with pytest.raises(ValueError, match=r"fewer than size=5000 .*raise difficulty"):
        list(countdown.generate(random.Random(0), 5000, "train", largest=4))
    with pytest.raises(ValueError, match="difficulty=2"):
        list(countdown.generate(random.Random(0), 5, "train", largest=2))


def test_by_example_tests_are_hidden_distinct_and_agree_with_the_examples():
    for p in problems(by_example):
        assert p.tests.kind == "stdin"
        inputs = [c.input for c in p.tests.cases]
        assert len(set(inputs)) == 16
        shown = {f"{a} {b}\n" for a, b, _ in by_example.parse(p.prompt)[2]}
        assert not shown & set(inputs)
        assert len({c.output for c in p.tests.cases}) > 1
    generated = list(by_example.generate(random.Random(0), 300, "train", few_tests_share=0.2))
    counts = [len(p.tests.cases) for p in generated]
    assert min(counts) >= 4
    assert 0.1 < sum(n < 16 for n in counts) / 300 < 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_teacher_that_never_errs_and_never_gives_up_finds_an_answer_that_fits_the_prompt(family):
    rng = random.Random(1)
    for p in problems(family):
        text = family.teach(rng, p.prompt, PERFECT)
        assert text.startswith("<think>\n")
        assert text.count("</think>") == 1
        if family is countdown:
            assert eval(boxed(text)) == int(p.answer or "")
            numbers = sorted(map(int, re.findall(r"\d+", boxed(text))))
            assert numbers == sorted(p.numbers or ())
        else:  # the two examples leave room for other functions: the hidden tests decide
            for a, b, f in by_example.parse(p.prompt)[2]:
                assert run_program(text, f"{a} {b}") == str(f)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_read_in_any_case_and_spacing_and_other_prompts_are_refused(family):
    p = problems(family, 1)[0]
    assert family.parse(p.prompt.upper().replace(" ", "  ")) == family.parse(p.prompt)
    assert family.parse("What is 1 + 1?") is None
    with pytest.raises(ValueError, match=r"no .* prompt"):
        family.teach(random.Random(0), "What is 1 + 1?", PERFECT)


NUMBERS = (3, 4, 7, 9)
FOUND = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text("utf-8"))


def test_the_target_from_each_number_once_is_right_and_one_that_is_no_number_is_unscored():
    for answer in FOUND["countdown"]:
        assert verify_countdown(answer, "24", NUMBERS).verdict == "AC", answer
    assert verify_countdown(r"\frac{8}{3-\frac{8}{3}}", "24", (8, 3, 8, 3)).verdict == "AC"
    assert verify_countdown("1", "many", (1,)).verdict == "IE"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        *FOUND["no_countdown"],
        ("(" * 900 + "9" + ")" * 900, "."),
        ("-" * 1999 + "9", "."),
        ("9" * 5000, "too long"),
    ],
)
def test_anything_else_is_wrong_with_a_reason(answer, reason):
    verdict = verify_countdown(answer, "24", NUMBERS)
    assert verdict.verdict == "WA"
    assert re.search(reason, verdict.reason)
