"""A sample in the columns of the public datasets that some tests read, so that these run without
the datasets: made up here, by chance from one seed, and nobody's text.

    python tests/data/generate.py [FOLDER]      # this folder unless another is named
"""

import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NAMES = ("Aino", "Boris", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Juno")
THINGS = ("lanterns", "maps", "ropes", "jars of honey", "tickets", "bricks", "lemons", "candles")
PLACES = ("harbour", "old mill", "station", "library", "bridge", "market", "tower", "orchard")
DAYS = ("a Monday in spring", "a windy evening", "the last day of May", "a morning of heavy rain")


def prose(chance: random.Random) -> tuple[str, str]:
    """A word problem of some forty words, and its answer."""
    name, other = chance.sample(NAMES, 2)
    start, goal = chance.sample(PLACES, 2)
    count, price, more = (chance.randrange(2, 90) for _ in range(3))
    have = count * price + chance.randrange(1, 999)
    text = (
        f"On {chance.choice(DAYS)} {name} walks from the {start} to the {goal} with ${have}$ "
        f"crowns and buys ${count}$ {chance.choice(THINGS)} for ${price}$ crowns each. Then "
        f"{other} comes along and gives {name} another ${more}$ crowns. How many crowns does "
        f"{name} take home from the {goal}?"
    )
    return text, str(have - count * price + more)


def formula(chance: random.Random) -> tuple[str, str]:
    """A problem with hardly a word between its formulas, and its answer."""
    a, b, c, d, k = (chance.randrange(2, 30) for _ in range(5))
    inner = d * k + c
    text = (
        rf"Let $f(x)={a}x^{{2}}+{b}x+{c}$, $g(x)={d}x+{c}$ and $h(x)=\frac{{f(x)}}{{{b}}}$. "
        rf"What is $f(g({k}))-{a}\cdot g({k})$, and what is ${b}\cdot h({k})-f({k})$? Add both."
    )
    return text, str(a * inner**2 + b * inner + c - a * inner)


def retyped(text: str) -> str:
    """The same problem as another site typesets it."""
    for old, new in (("$.", r"\)."), ("$,", r"\),"), ("$ ", r"\) "), ("$?", r"\)?")):
        text = text.replace(old, new)
    text = text.replace("$", r"\(").replace(r"\frac", r"\dfrac").replace("^{2}", "^2")
    return text.replace("=", " = ").replace("+", " + ")


def mathematics(chance: random.Random) -> dict[str, list[Row]]:
    """Benchmarks, and sources of which one holds leaks and repeats."""
    aime = [(formula if n % 2 else prose)(chance) for n in range(30)]
    tested, trained = [prose(chance) for _ in range(60)], [prose(chance) for _ in range(3000)]
    problems = [text for text, _ in trained]
    for n in range(0, 3000, 20):
        problems[n] = f"Solve step by step. {tested[n // 20 % 60][0]} Check your result."
    for n in range(7, 3000, 25):  # one word is another
        words = problems[n - 7].split()
        words[chance.randrange(len(words))] = "indeed"
        problems[n] = " ".join(words)
    others = [(text, value) for text, value in map(prose, [chance] * 60)]
    elsewhere = [(retyped(text), value) for text, value in aime] + others
    chance.shuffle(elsewhere)
    return {
        "aime24/test": [
            {"id": f"aime24-{n}", "problem": text, "expected_answer": value}
            for n, (text, value) in enumerate(aime)
        ],
        "aimo_validation_aime/train": [
            {"id": n, "question": text, "answer": value}
            for n, (text, value) in enumerate(elsewhere)
        ],
        "math500/test": [{"problem": text, "answer": value} for text, value in tested],
        "deepscaler/train": [
            {"problem": text, "answer": value, "source": "deepscaler"}
            for text, (_, value) in zip(problems, trained, strict=True)
        ],
        "math_train/train": [{"problem": text, "answer": value} for text, value in trained[-200:]],
        "skythought_cot/aime24": recordings(chance, aime[:10]),
    }


def recordings(chance: random.Random, problems: list[tuple[str, str]]) -> list[Row]:
    """Graded answers of four models that think in tags of their own; some are cut off."""
    rows: list[Row] = []
    for model in ("S-7B", "S-14B", "S-32B", "S-72B"):
        for text, value in problems:
            right, cut = chance.random() < 0.6, chance.random() < 0.1
            box = value if right else str(int(value) + chance.randrange(1, 9))
            answer = (
                f"<|begin_of_thought|>\n\nIs it \\boxed{{{int(value) + 9}}}? Let me compute.\n\n"
                f"<|end_of_thought|>\n\n<|begin_of_solution|>\n\nThe result is \\boxed{{{box}}}."
                "\n\n<|end_of_solution|>"
            )
            rows.append({
                "bench": "aime24", "model": model, "idx": len(rows), "question": text, "gt": value,
                "response": answer[:60] if cut else answer, "correct": right and not cut,
            })  # fmt: skip
    return rows


FUNCTIONS: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("largest_{k}", "values", "sum(sorted(values)[-{k}:])", lambda k, v: sum(sorted(v)[-k:])),
    ("every_{k}", "values", "values[::{k}]", lambda k, v: v[::k]),
    ("above_{k}", "values", "[v for v in values if v > {k}]", lambda k, v: [x for x in v if x > k]),
    ("times_{k}", "values", "[v * {k} for v in values]", lambda k, v: [x * k for x in v]),
    ("digits_{k}", "values", "''.join(str(v % {k}) for v in values)",
     lambda k, v: "".join(str(x % k) for x in v)),
    ("divisible_{k}", "values", "any(v % {k} == 0 for v in values)",
     lambda k, v: any(x % k == 0 for x in v)),
]  # fmt: skip


def programs(chance: random.Random) -> dict[str, list[Row]]:
    """Thirty-six small functions in the columns of five datasets, and two problems on stdin."""
    rows: dict[str, list[Row]] = {
        name: []
        for name in ("leetcode/v0.2.0_train", "leetcode/v0.3.1_test", "humaneval/test",
                     "mbpp/mbpp", "mbpp_plus/MbppPlus")
    }  # fmt: skip
    for n in range(36):
        name, argument, expression, compute = FUNCTIONS[n % len(FUNCTIONS)]
        k = 2 + n // len(FUNCTIONS)
        name, expression = name.format(k=k), expression.format(k=k)
        inputs = [[chance.randrange(1, 50) for _ in range(7)] for _ in range(4)]
        pairs = [(values, compute(k, values)) for values in inputs]
        method = (
            f"class Solution:\n    def {name}(self, {argument}):\n        return {expression}\n"
        )
        plain = f"def {name}({argument}):\n    return {expression}\n"
        check = "def check(candidate):\n" + "".join(
            f"    assert candidate({argument} = {values}) == {value!r}\n" for values, value in pairs
        )
        text = f"Write {name}, which returns {expression} of a list of whole numbers."
        leetcode = {"task_id": f"task-{n}", "completion": method, "query": text, "test": check,
                    "entry_point": f"Solution().{name}", "response": method}  # fmt: skip
        rows["leetcode/v0.2.0_train"].append(leetcode)
        rows["leetcode/v0.3.1_test"].append(leetcode)
        head, body = plain.split("\n", 1)
        rows["humaneval/test"].append({
            "task_id": f"HumanEval/{n}", "prompt": f'{head}\n    """{text}"""\n',
            "canonical_solution": body,
            "entry_point": name, "test": check.replace(f"{argument} = ", ""),
        })  # fmt: skip
        asserts = [f"assert {name}({values}) == {value!r}" for values, value in pairs]
        rows["mbpp/mbpp"].append({
            "task_id": n, "text": text, "code": plain, "test_setup_code": "",
            "test_list": asserts[:3], "challenge_test_list": asserts[3:] if n % 9 == 0 else [],
        })  # fmt: skip
        rows["mbpp_plus/MbppPlus"].append({
            "task_id": n, "entry_point": name, "canonical_solution": plain, "prompt": text,
            "base_input": [[values] for values in inputs[:2]],
            "plus_input": [[values] for values in inputs[2:]],
        })  # fmt: skip
    for number, name in ((32, "poly"), (38, "encode_cyclic"), (50, "encode_shift")):
        row = rows["humaneval/test"][number % 36]  # its test calls a function of the prompt
        row |= {
            "task_id": f"HumanEval/{number}",
            "prompt": f"def {name}(values):\n    return list(values)\n\n{row['prompt']}",
            "test": row["test"].replace("candidate([", f"candidate({name}([").replace(
                "]) ==", "])) =="),
        }  # fmt: skip
    contests = [contest("sums", "sum"), contest("largest", "max")]
    return rows | {"kodsport/problems": contests, "rllm_code/codeforces_test": contests}


def contest(name: str, function: str) -> Row:
    """A problem on stdin with submissions as a contest's own judge took them."""
    form = "input()\nprint({function}(map(int, input().split())))\n"
    tests = [
        (f"{n}\n{' '.join(map(str, range(n, 3 * n)))}\n", range(n, 3 * n)) for n in range(1, 9)
    ]
    compute = {"sum": sum, "max": max}[function]
    return {
        "id": f"sample/{name}", "kind": "diff", "skipped_big_tests": 0,
        "tests": [{"input": text, "output": f"{compute(values)}\n"} for text, values in tests],
        "submissions": [
            {"verdict": "accepted", "file": "right.py", "code": form.format(function=function)},
            {"verdict": "wrong_answer", "file": "wrong.py", "code": form.format(function="min")},
        ],
    }  # fmt: skip


def sample() -> dict[str, list[Row]]:
    """Rows by the name of their file."""
    return mathematics(random.Random(1)) | programs(random.Random(2))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, rows in sample().items():
        path = folder / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
