"""Problems of the generated families, with duplicates and benchmark problems planted on purpose.

The planted rows give every filter of the tiny profile real work: duplicates differ in case and
spacing at times, and contaminated rows are problems of the benchmark itself.
"""

import random
from collections.abc import Iterator

from configs.sources import Source
from eval.families import by_example, countdown
from eval.families.split import Side
from eval.records import Problem, StdinCase


def generated_problems(source: Source, seed: int) -> Iterator[Problem]:
    """`source.size` problems, planted ones included; a duplicate follows its original."""
    duplicates = round(source.duplicate_share * source.size)
    contaminated = round(source.contaminated_share * source.size)
    ordinary = source.size - duplicates - contaminated
    rng = random.Random(f"plant {source.name} {seed}")
    stream = f"{source.name} {seed}"
    if source.fixed_seed is not None:
        stream = f"fixed {source.fixed_seed}"
    problems = list(_family(source, stream, ordinary, source.split_part))
    leaked = f"fixed {source.contaminated_seed}"  # the stream of that benchmark
    problems += _family(source, leaked, contaminated, "test")
    if contaminated:
        rng.shuffle(problems)
    if source.flawed_tests_share:
        chance = random.Random(f"flaws {source.name} {seed}")
        problems = [_flawed(p, source.flawed_tests_share, chance) for p in problems]
    for problem in _with_duplicates(problems, duplicates, rng):
        yield problem.model_copy(update={"source": source.name})


def _flawed(problem: Problem, share: float, rng: random.Random) -> Problem:
    """With the probability `share`: half of the expected outputs one too large."""
    if problem.tests is None or rng.random() >= share:
        return problem
    cases = problem.tests.cases
    wrong = set(rng.sample(range(len(cases)), max(1, len(cases) // 2)))
    told = tuple(_one_too_large(case) if i in wrong else case for i, case in enumerate(cases))
    tests = problem.tests.model_copy(update={"cases": told})
    return problem.model_copy(update={"tests": tests})


def _one_too_large(case: object) -> StdinCase:
    assert isinstance(case, StdinCase), "the families are tested by stdin and stdout"
    return case.model_copy(update={"output": f"{int(case.output) + 1}\n"})


def _family(source: Source, stream: str, size: int, side: Side) -> Iterator[Problem]:
    rng = random.Random(f"{source.family} {stream}")
    if source.family == "countdown":
        largest = source.difficulty or countdown.LARGEST_NUMBER
        targets = (source.smallest_target, source.largest_target)
        return countdown.generate(rng, size, side, largest=largest, targets=targets)
    return by_example.generate(
        rng,
        size,
        side,
        largest=source.difficulty or by_example.LARGEST_NUMBER,
        few_tests_share=source.few_tests_share,
    )


def _with_duplicates(problems: list[Problem], count: int, rng: random.Random) -> list[Problem]:
    """Insert `count` repeats at random places after their originals."""
    placed: list[tuple[float, Problem]] = [(float(i), p) for i, p in enumerate(problems)]
    for _ in range(count if problems else 0):
        i = rng.randrange(len(problems))
        place = rng.uniform(i, len(problems))
        placed.append((place, _repeat(problems[i], rng)))
    placed.sort(key=lambda row: row[0])
    return [problem for _, problem in placed]


def _repeat(problem: Problem, rng: random.Random) -> Problem:
    """The same problem, half of the time typeset differently; the id stays the same."""
    prompt = problem.prompt
    styles = (prompt, prompt, prompt.upper(), prompt.replace(" ", "  "))
    return problem.model_copy(update={"prompt": rng.choice(styles)})
