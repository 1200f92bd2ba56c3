"""Problems of the generated families, with duplicates and benchmark problems planted on purpose.

The planted rows give every filter of the tiny profile real work: duplicates differ in case and
spacing at times, and contaminated rows are problems of the benchmark itself.
"""

import random
from collections.abc import Iterator

from ...configs.settings.sources import Source
from ...eval.families import by_example, countdown
from ...eval.families.countdown import Side
from ...eval.records import Problem, StdinCase


def generated_problems(source: Source, seed: int) -> Iterator[Problem]:
    """`source.size` problems, planted ones included; a duplicate follows its original."""
    duplicates = round(source.duplicate_share * source.size)
    contaminated = round(source.contaminated_share * source.size)
    ordinary = source.size - duplicates - contaminated
    rng = random.Random(f"plant {source.name} {seed}")
    fixed = source.fixed_seed
    stream = f"{source.name} {seed}" if fixed is None else f"fixed {fixed}"
    problems = list(_family(source, stream, ordinary, source.split_part))
    leaked = f"fixed {source.contaminated_seed}"  # the stream of that benchmark
    problems += _family(source, leaked, contaminated, "test")
    if contaminated:
        rng.shuffle(problems)
    if source.flawed_tests_share:
        chance = random.Random(f"flaws {source.name} {seed}")
        problems = [_flawed(p, source.flawed_tests_share, chance) for p in problems]
    placed: list[tuple[float, Problem]] = [(float(i), p) for i, p in enumerate(problems)]
    for _ in range(duplicates if problems else 0):
        original = rng.randrange(len(problems))
        place = rng.uniform(original, len(problems))
        prompt = problems[original].prompt
        # Half of the time typeset differently; the id stays the same.
        styles = (prompt, prompt, prompt.upper(), prompt.replace(" ", "  "))
        repeat = problems[original].model_copy(update={"prompt": rng.choice(styles)})
        placed.append((place, repeat))
    for _, problem in sorted(placed, key=lambda row: row[0]):
        yield problem.model_copy(update={"source": source.name})


def _family(source: Source, stream: str, size: int, side: Side) -> Iterator[Problem]:
    rng = random.Random(f"{source.family} {stream}")
    if source.family == "countdown":
        largest = source.difficulty or countdown.LARGEST_NUMBER
        targets = (source.smallest_target, source.largest_target)
        return countdown.generate(rng, size, side, largest=largest, targets=targets)
    largest, few = source.difficulty or by_example.LARGEST_NUMBER, source.few_tests_share
    return by_example.generate(rng, size, side, largest=largest, few_tests_share=few)


def _flawed(problem: Problem, share: float, rng: random.Random) -> Problem:
    """With the probability `share`: half of the expected outputs one too large."""
    if problem.tests is None or rng.random() >= share:
        return problem
    cases = list(problem.tests.cases)
    for number in rng.sample(range(len(cases)), max(1, len(cases) // 2)):
        case = cases[number]
        assert isinstance(case, StdinCase), "the families are tested by stdin and stdout"
        wrong = f"{int(case.output) + 1}\n"
        cases[number] = case.model_copy(update={"output": wrong})
    tests = problem.tests.model_copy(update={"cases": tuple(cases)})
    return problem.model_copy(update={"tests": tests})
