"""The data of the profile `open_traces`, on local rows: no teacher is asked, RL samples nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from klear.configs.loading import load_profile
from klear.eval.records import Example, Problem, Sample, problem_id
from klear.eval.records.tables import read_table
from klear.flows.dag import build_dag, upstream_of
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.report.report import report_page
from klear.tasks.store.store import Store
from tests.tasks.manifests_by_hand import jsonl

PROBLEMS = 20  # of each source
TRACED = ["openr1_math", "deepmath", "openthoughts3_math", "openthoughts3_code"]
RATED = ["polaris", "intellect3_code"]
"""One of each kind; tests/tasks/test_source_schemas.py has the schemas of all."""


def sum_of(start: int, n: int) -> tuple[str, str, str]:
    """Prompt, answer and a teacher's text of one problem; no two starts share a problem."""
    a, b = start + n, 3 * n + 1
    text = f"<think>{a} and {b} are {a + b}.</think>\nIt is \\boxed{{{a + b}}}."
    return f"What is {a} plus {b}?", str(a + b), text


def program_for(start: int, n: int) -> tuple[str, str, str]:
    k = start + n
    tests = {"inputs": [f"{i}\n" for i in range(16)], "outputs": [f"{i + k}\n" for i in range(16)]}
    code = f"<think>I add {k}.</think>\n```python\nprint(int(input()) + {k})\n```"
    return f"Read a number and print it plus {k}.", json.dumps(tests), code


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "user", "value": prompt}, {"from": "assistant", "value": answer}]


def row_of(name: str, start: int, n: int) -> dict[str, Any]:
    """In the schema of an entry of the catalogue."""
    (p, answer, text), (task, tests, code) = sum_of(start, n), program_for(start, n)
    rate = {"avg@8_qwen3_4b_instruct_2507": (n % 9) / 8}
    rows: dict[str, dict[str, Any]] = {
        "openr1_math": {"generations": [text, text.replace("and", "plus")]},
        "deepmath": {"question": p, "final_answer": answer, "r1_solution_1": text},
        "openthoughts3_math": {"domain": "math", "conversations": chat(p, text)},
        "openthoughts3_code": {"domain": "code", "conversations": chat(task, code)},
        "polaris": {"difficulty": f"{n % 9}/8"},
        "intellect3_code": {"question": task, "info": json.dumps({"tests": tests}), **rate},
    }
    return {"problem": p, "answer": answer, **rows.get(name, {})}


def local(names: list[str], root: Path, first: int = 1) -> list[dict[str, Any]]:
    """The entries with files of the same schema in the place of the hub."""
    for number, name in enumerate(names, first):
        jsonl(root / f"{name}.jsonl", *(row_of(name, 1000 * number, n) for n in range(PROBLEMS)))
    return [{"use": name, "files": [f"{name}.jsonl"]} for name in names]


def cut(root: Path) -> Path:
    """The profile with local rows, and RL on prompts with known pass rates."""
    profile = {
        "extends": "open_traces",
        "data": {"root": str(root)},
        "collect": {"sources": local([*TRACED, *RATED], root)},
        "benchmarks": {"sources": local(["aime24"], root, first=90)},
        "evaluate": {"protocols": [{"name": "aime24", "k": 1}]},
        "distill": {"samples_per_prompt": 2, "sources": TRACED},
        "difficulty": {"rater": "teacher"},
        "decontaminate": {"min_coverage": 0.5},
        "filter_tests": {"sources": RATED},
        "sample": {"sources": RATED},
        "filter_rl": {"pass_rates": "published"},
    }
    (root / "cut.yaml").write_text(yaml.safe_dump(profile))
    return root / "cut.yaml"


@pytest.mark.system
def test_published_answers_and_pass_rates_are_all_that_sft_and_rl_train_on(tmp_path):
    settings = load_profile(str(cut(tmp_path)))
    graph = build_dag(settings)
    calls = {c.stage.name: c for last in ("select", "filter_rl") for c in upstream_of(last, graph)}
    with active(Run(store=Store(tmp_path / "store"), seed=0)):
        results = compute(settings, calls=calls.values())
    assert not {"rate", "judge_rate", "sample", "judge_rl"} & set(results)
    traced = len(settings.distill.sources)
    assert results["collect"].metrics["kept"] == PROBLEMS * len(settings.collect.sources)
    # One answer a prompt, and two of OpenR1-Math.
    assert results["distill"].metrics["published"] == PROBLEMS * (traced + 1)
    assert results["distill"].metrics["prompts_without_trace"] == 0
    samples = list(read_table(results["distill"].file("samples.parquet"), Sample))
    assert {s.model for s in samples} == {"DeepSeek-R1", "QwQ-32B"}
    examples = list(read_table(results["select"].file("kept.parquet"), Example))
    assert len(examples) == len(samples)  # §5.1.1: all, right or wrong
    right = {e.source for e in examples if e.correct}
    assert right == {"openr1_math", "deepmath"}  # those with gold

    # Of 8 answers 5 or more must pass: rows 5 to 8 and 14 to 17 of 20.
    rated = {n for n in range(PROBLEMS) if n % 9 > 4}
    start = 1000 * (1 + len(TRACED))  # of polaris
    kept = {p.id for p in read_table(results["filter_rl"].file("kept.parquet"), Problem)}
    assert {problem_id(sum_of(start, n)[0]) for n in rated} < kept
    assert len(kept) == 2 * len(rated) == results["filter_rl"].metrics["kept"]
    page = report_page([*results.values()], "open_traces").body
    assert "40 pass rates came with rows of the sources, and were not measured here" in page
