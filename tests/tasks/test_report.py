"""The report stage: files on disk from whatever stages are given."""

import json
import re
from pathlib import Path

from configs.evaluate_stage import BenchmarkProtocol, ReportSettings
from eval.benchmarks import Statement, score_benchmark
from eval.records import Problem, Rejected, Score
from eval.tables import write_table
from tasks.report import report
from tasks.store import Artifact

STATEMENT = Statement(
    checkpoint="c0ffee", engine="transformers 5", temperature=0.6, top_p=0.95, max_tokens=64,
    yarn_factor=None, template="t", grader_version=1, sandbox="bubblewrap", seed=1, resamples=20,
)  # fmt: skip
TINY = ReportSettings(profile="tiny")


def dedup(root: Path) -> Artifact:
    folder = root / "dedup"
    folder.mkdir()
    write_table(folder / "kept.parquet", Problem, [Problem(domain="math", prompt="a", answer="1")])
    write_table(folder / "rejected.parquet", Rejected, [Rejected(id="b", reason="twice", row="{}")])
    return Artifact.of_folder(folder, "dedup").model_copy(update={"seconds": 1.5})


def sft(root: Path) -> Artifact:
    folder = root / "sft"
    (folder / "logs").mkdir(parents=True)
    lines = ({"step": t, "time": 0.0, "metrics": {"loss": 1 / t}} for t in (1, 2, 3))
    (folder / "logs/metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return Artifact.of_folder(folder, "sft")


def evaluation(root: Path, correct: bool) -> Artifact:
    folder = root / "evaluate_sft"
    folder.mkdir()
    problem = Problem(domain="math", prompt="q", answer="1", source="aime24")
    score = Score(problem_id=problem.id, reward=1.0, correct=correct, pass_rate=float(correct),
                  verdict="AC" if correct else "WA")  # fmt: skip
    protocol = BenchmarkProtocol(name="aime24", k=1)
    result = score_benchmark(protocol, [problem], {}, {(problem.id, 0): score}, STATEMENT)
    (folder / "results.json").write_text(f"[{result.model_dump_json()}]")
    return Artifact.of_folder(folder, "evaluate_sft")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_report_is_two_pages_and_the_plots_that_the_markdown_shows(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    metrics = report.body(out, dedup(tmp_path), sft(tmp_path), evaluation(tmp_path, True),
                          settings=TINY)  # fmt: skip
    plots = {f"plots/{n}.svg" for n in ("funnel", "scores", "sft_loss")}
    assert set(files(out)) == {"report.md", "report.html"} | plots
    assert set(re.findall(r"\]\((plots/\S+?)\)", (out / "report.md").read_text())) == plots
    assert metrics == {"stages": 3.0, "plots": 3.0, "aime24/avg": 1.0}


def test_equal_inputs_give_equal_bytes_in_any_order(tmp_path):
    inputs = [dedup(tmp_path), sft(tmp_path), evaluation(tmp_path, False)]
    for name, order in (("a", inputs), ("b", inputs[::-1])):
        (tmp_path / name).mkdir()
        report.body(tmp_path / name, *order, settings=TINY)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_every_stage_and_the_total_are_in_the_cost_table(tmp_path):
    report.body(tmp_path, dedup(tmp_path), sft(tmp_path), settings=TINY)
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| dedup \| 1\.5 s \|", text)
    assert re.search(r"\*\*all stages\*\* \| 1\.5 s \|", text)


def test_a_report_of_nothing_is_still_a_page(tmp_path):
    assert report.body(tmp_path, settings=TINY) == {"stages": 0.0, "plots": 0.0}
    assert "not comparable to the paper" in (tmp_path / "report.html").read_text()
