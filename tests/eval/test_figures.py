"""The pictures of a stage, from whatever its folder holds."""

import json
from xml.etree import ElementTree

from configs.evaluate_stage import BenchmarkProtocol
from eval.benchmarks import Statement, score_benchmark
from eval.figures import stage_figures
from eval.records import Problem, Score

STATEMENT = Statement(
    checkpoint="c", engine="e", temperature=0.6, top_p=0.95, max_tokens=64, yarn_factor=None,
    template="t", grader_version=1, sandbox="none", seed=1, resamples=20,
)  # fmt: skip


def test_rl_has_curves_of_entropy_and_clipping_and_histograms_of_lengths_and_rewards(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    metrics = {"entropy": 1.0, "clip/high": 0.1, "clip/low": 0.2, "reward/mean": 0.5}
    lines = [{"step": t, "time": 0.0, "metrics": metrics} for t in (1, 2)]
    (logs / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    counts = {"answer_tokens": [1.0, 3.0], "reward": [2.0, 2.0]}
    (logs / "histograms.jsonl").write_text(2 * (json.dumps(counts) + "\n"))
    ranges = {"answer_tokens": [0, 192], "reward": [-2, 2]}
    (logs / "histogram_ranges.json").write_text(json.dumps(ranges))
    found = stage_figures("rl_math", tmp_path)
    assert set(found) == {
        "entropy", "share_of_tokens_clipped", "reward",
        "histogram_answer_tokens", "histogram_reward",
    }  # fmt: skip
    text = "".join(ElementTree.fromstring(found["histogram_answer_tokens"]).itertext())
    assert "step 1" in text
    assert "step 2" in text
    assert "60 %" in text  # 3 of 4 answers are in the upper bin
    assert "80 %" not in text


def test_an_evaluation_shows_its_average_with_its_interval(tmp_path):
    problems = [Problem(domain="math", prompt=str(i), answer="1", source="s") for i in range(4)]
    scores = {
        (p.id, 0): Score(problem_id=p.id, reward=1.0, correct=i < 3, pass_rate=float(i < 3),
                         verdict="AC" if i < 3 else "WA")
        for i, p in enumerate(problems)
    }  # fmt: skip
    protocol = BenchmarkProtocol(name="sums", k=1)
    result = score_benchmark(protocol, problems, {}, scores, STATEMENT)
    (tmp_path / "results.json").write_text(f"[{result.model_dump_json()}]")
    (svg,) = stage_figures("evaluate_sft", tmp_path).values()
    text = "".join(ElementTree.fromstring(svg).itertext())
    assert "sums avg@1" in text
    assert f"75.0  [{100 * (result.ci_low or 0):.1f}, {100 * (result.ci_high or 0):.1f}]" in text


def test_a_folder_of_rows_has_no_pictures(tmp_path):
    assert stage_figures("dedup", tmp_path) == {}
