"""Math entries of the catalogue on rows in the schema of their dataset; the contents are invented.

Schemas as of August 2026 from dataset cards and published loaders. Not verified: the wording of
Skywork's and AceReason-SFT's instruction after the problem, and the type of aime_2024's answer.
"""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.settings.sources import Source
from eval.records import Problem
from tasks.data.row_to_problem import BadField, to_problem
from tasks.data.sources import Piece, needed_columns, piece_rows

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
STEPS = "Let's think step by step and output the final answer within \\boxed{}."


def verl(question: str, ground_truth: str, **more: Any) -> dict[str, Any]:
    return {
        "data_source": "train-math-numinamath1.5_olympiads",
        "prompt": [{"content": question, "role": "user"}],
        "ability": "math",
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        **more,
    }


PLAIN = {"problem": "What is 1 + 1?", "answer": "2"}
CONVERSATION = [
    {"from": "human", "value": "What is 1 + 1?"},
    {"from": "gpt", "value": "<think>two</think>2"},
]
ROWS: dict[str, dict[str, Any]] = {
    "openthoughts3_math": {"domain": "math", "conversations": CONVERSATION},
    "numina_math": {**PLAIN, "problem_is_valid": "Yes", "solution_is_valid": "Yes"},
    "acereason_sft_math": {"category": "math", "input": f"What is 1 + 1?\n{BOXED}"},
    "acereason_math": PLAIN,
    "deepscaler": {**PLAIN, "solution": "It is 2."},
    "skywork_math": verl(f"What is 1 + 1? {STEPS}", '["2"]', extra_info={"index": 7}),
    "openr1_math": {**PLAIN, "generations": ["<think>two</think>2", "<think>tw"]},
    "klear_math": verl(f"What is 1 + 1? {BOXED}", "2", __index_level_0__="29999"),
    "aime24": {**PLAIN, "id": 60, "year": "2024"},
    "aime25": {**PLAIN, "id": "0"},
    "hmmt25": {**PLAIN, "problem_idx": 1, "problem_type": ["Algebra"]},
    "math500": {**PLAIN, "solution": "It is $\\boxed{2}$.", "level": 1},
}
WITHOUT_GOLD = {"openthoughts3_math", "acereason_sft_math"}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_dataset_is_a_problem(name):
    problem = to_problem(ROWS[name], Source(use=name))
    gold = {"judgeable": False} if name in WITHOUT_GOLD else {"answer": "2"}
    assert problem == Problem(domain="math", prompt="What is 1 + 1?", source=name, **gold)


def test_only_the_columns_a_problem_is_made_from_are_read(tmp_path):
    path = tmp_path / "copy.parquet"
    pq.write_table(pa.Table.from_pylist([ROWS["openr1_math"]]), path)
    source = Source(use="openr1_math", files=(path.name,))
    (row,) = piece_rows(Piece(file=path), source, tmp_path, "openr1_math")
    assert set(row.value or {}) == {"problem", "answer"} == needed_columns(source)


def test_numinas_problems_without_an_answer_are_rejected_with_what_stands_there():
    row = {**ROWS["numina_math"], "answer": "Proof"}
    with pytest.raises(BadField, match="field answer: 'Proof' is no answer to judge by"):
        to_problem(row, Source(use="numina_math"))


def test_numinas_proofs_can_be_kept_as_prompts_for_sft():
    row = {**ROWS["numina_math"], "answer": "proof"}
    problem = to_problem(row, Source(use="numina_math", gold_optional=True))
    assert (problem.judgeable, problem.answer) == (False, None)


def test_skyworks_rows_with_several_right_answers_are_rejected_with_their_number():
    row = verl("What is a root of x^2 = 4?", '["2", "-2"]')
    with pytest.raises(BadField, match=r"reward_model\.ground_truth: 2 answers; the judge takes"):
        to_problem(row, Source(use="skywork_math"))
