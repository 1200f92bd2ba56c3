"""The leaderboard: ours beside Table 1, always labelled, and blank where nothing is known."""

from pathlib import Path

from configs.evaluate_stage import PAPER_PROTOCOLS, BenchmarkProtocol
from eval import paper_table
from eval.benchmarks import BenchmarkResult, Statement, score_benchmark
from eval.leaderboard import leaderboard_section
from eval.page import Cell, Paragraph, Table
from eval.records import Problem, Score
from eval.run_facts import RunFacts, StageOutput

STATEMENT = Statement(
    checkpoint="c0ffee", engine="vllm", temperature=0.6, top_p=0.95, max_tokens=65_536,
    yarn_factor=2.5, top_k=20, template="t", grader_version=1, sandbox="bubblewrap", seed=1,
    resamples=50,
)  # fmt: skip


def result(protocol: BenchmarkProtocol, right: int) -> BenchmarkResult:
    """`right` of ten problems are solved."""
    problems = [Problem(domain="math", prompt=f"p{i}", answer="1") for i in range(10)]
    scores = {
        (p.id, 0): Score(problem_id=p.id, reward=1, correct=i < right, pass_rate=float(i < right),
                         verdict="AC" if i < right else "WA")
        for i, p in enumerate(problems)
    }  # fmt: skip
    return score_benchmark(protocol, problems, {}, scores, STATEMENT)


def rows(tmp_path: Path, *results: BenchmarkResult, profile: str = "tiny") -> Table:
    folder = tmp_path / "evaluate_sft"
    folder.mkdir()
    text = ",".join(r.model_dump_json() for r in results)
    (folder / "results.json").write_text(f"[{text}]")
    blocks = leaderboard_section(RunFacts([StageOutput(folder.name, folder, {})]), profile)
    return next(b for b in blocks if isinstance(b, Table))


def test_our_row_has_its_label_its_protocol_and_blanks_where_nothing_was_measured(tmp_path):
    lcb = PAPER_PROTOCOLS[4]
    table = rows(tmp_path, result(PAPER_PROTOCOLS[0].model_copy(update={"k": 1}), 3),
                 result(lcb, 10))  # fmt: skip
    ours = table.rows[0]
    assert ours[0] == "SFT (tiny profile)"
    assert ours[6:] == ("64K", "2.5", "0.6", "0.95", "20", "off")
    aime, *blank, lcb_v6 = ours[1:6]
    assert isinstance(aime, Cell)
    assert (aime.text, aime.detail.endswith("avg@1")) == ("30.0", True)
    assert blank == ["", "", ""]
    assert isinstance(lcb_v6, Cell)
    assert lcb_v6.text == "100.0"


def test_a_score_on_another_window_is_in_no_column_of_the_paper(tmp_path):
    early = PAPER_PROTOCOLS[3].model_copy(update={"date_to": "2024-10-01"})
    table = rows(tmp_path, result(PAPER_PROTOCOLS[0], 1), result(early, 10))
    assert table.rows[0][1 + 3] == ""


def test_the_papers_rows_are_whole_and_state_only_what_the_paper_states(tmp_path):
    table = rows(tmp_path, result(PAPER_PROTOCOLS[0], 1))
    by_name = {row[0]: row for row in table.rows}
    assert by_name["Klear-Reasoner-8B, 64K budget"][6:10] == ("64K", "2.5", "0.6", "0.95")
    assert by_name["Qwen3-8B"][6:8] == ("", "")
    assert all(
        row[10:12] == ("", "") for name, row in by_name.items() if "profile" not in str(name)
    )
    assert len(table.rows) == 1 + len(paper_table.ROWS)
    assert {table.rows[i][0] for i in table.emphasis} == {
        r.model for r in paper_table.ROWS if r.ours
    }


def test_every_row_that_is_not_the_papers_names_its_profile(tmp_path):
    table = rows(tmp_path, result(PAPER_PROTOCOLS[0], 1), profile="")
    published = {r.model for r in paper_table.ROWS}
    assert [row[0] for row in table.rows if row[0] not in published] == ["SFT (unlabelled profile)"]


def test_a_run_that_scored_none_of_these_benchmarks_says_so(tmp_path):
    blocks = leaderboard_section(RunFacts([]), "tiny")
    assert any(isinstance(b, Paragraph) and "none of these benchmarks" in b.text for b in blocks)
