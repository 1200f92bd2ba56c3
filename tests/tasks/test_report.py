"""The report: what it says of a run, what it leaves out, and which files it is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from klear.configs.metrics import metric_of
from klear.configs.settings.evaluation import PAPER_PROTOCOLS, BenchmarkProtocol, ReportSettings
from klear.eval.benchmarks.benchmarks import RESULTS, BenchmarkResult, Statement, score_benchmark
from klear.eval.benchmarks.grades import Grade, Graded
from klear.eval.records import Problem, Rejected, Sample
from klear.tasks.report.page import TEMPLATES, Figure, Page, environment, link, with_inline_plots
from klear.tasks.report.report import differing, reason_kind, report, report_page
from klear.tasks.report.results import Evaluation, Outputs, change_of, curves_of
from klear.tasks.report.run_story import PlannedStage, RunStory, StageOutcome
from klear.tasks.store.store import Artifact
from klear.training.launch.result_files import METRICS, OFF_POLICY, MetricsFile, StepLines
from klear.training.rl.off_policy_counts import CELLS
from tests.eval.evaluations_by_hand import scored
from tests.tasks.manifests_by_hand import folder_with
from tests.tasks.pages_by_hand import EVIL, Elements, page_of, table_rows

STATEMENT = Statement(
    checkpoint="c0ffee", engine="transformers 5", temperature=0.6, top_p=0.95, max_tokens=65_536,
    yarn_factor=2.5, top_k=20, template="t", grader_version=1, sandbox="bubblewrap", seed=1,
    resamples=50,
)  # fmt: skip
PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.txt"


def problem(name: str, source: str = "aime24") -> Problem:
    return Problem(domain="math", prompt=name, answer="1", source=source)


def result(right: int, protocol: BenchmarkProtocol, problems_asked: int = 10, unscored: int = 0,
           sandbox: str = "bubblewrap") -> BenchmarkResult:  # fmt: skip
    problems = [
        problem(f"question {i}", protocol.source or protocol.name) for i in range(problems_asked)
    ]
    marks = [None if i >= problems_asked - unscored else i < right for i in range(problems_asked)]
    scores = {(p.id, 0): scored(p.id, m) for p, m in zip(problems, marks, strict=True)}
    statement = STATEMENT.model_copy(update={"sandbox": sandbox})
    return score_benchmark(protocol, problems, {}, scores, statement)


def evaluation(root: Path, checkpoint: str, *results: BenchmarkResult) -> Artifact:
    folder = root / f"evaluate_{checkpoint}"
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(RESULTS.dump_json(results))
    return Artifact.of_folder(folder, folder.name)


def solved(root: Path, checkpoint: str, right: int, *, name: str = "aime24", **more) -> Artifact:
    return evaluation(root, checkpoint, result(right, BenchmarkProtocol(name=name, k=1), **more))


def filtered(root: Path, stage: str, reasons: list[str], name: str = "kept") -> Artifact:
    folder = root / stage
    sample = Sample(problem_id="p", index=0, model="m", text="t")
    rows: list[Any] = [problem("a"), problem("b")] if name == "kept" else [sample] * 2
    row = json.dumps({"prompt": EVIL})
    rejected = [Rejected(id=str(i), reason=r, row=row) for i, r in enumerate(reasons)]
    folder_with(folder, rejected=rejected, **{name: rows})
    return Artifact.of_folder(folder, stage)


def sft(root: Path) -> Artifact:
    metrics = MetricsFile(root / "sft")
    for step, loss in ((1, 3.0), (2, 9.0), (2, 2.0)):
        metrics.append(step, {"loss": loss})
    return Artifact.of_folder(root / "sft", "sft")


def body(*inputs: Artifact, profile: str = "tiny", story: RunStory | None = None) -> str:
    return report_page(inputs, profile, story).body


def test_figures_of_anything_but_the_papers_profile_as_it_is_are_not_shown_as_the_papers(tmp_path):
    for profile in ("tiny", "replay", "single_gpu", ""):
        label = f"> **{profile or 'unlabelled'}-profile figures: not comparable to the paper**"
        assert label.replace("_", r"\_") in body(profile=profile)
    assert "not comparable" not in body(profile="paper")
    inputs = [evaluation(tmp_path, "sft", result(3, PAPER_PROTOCOLS[0]))]
    story = RunStory(changes=("sft.epochs 4 → 1",))
    text = body(*inputs, profile="paper", story=story)
    assert "Not the paper's figures" in text
    assert "SFT (paper profile, changed)" in table_rows(text, "Leaderboard")
    unchanged = body(*inputs, profile="paper", story=RunStory())
    assert "SFT (paper profile)" in table_rows(unchanged, "Leaderboard")
    assert "Not the paper's figures" not in unchanged


def test_checkpoints_come_in_training_order_with_the_change_from_the_one_before(tmp_path):
    rights = (("rl_math", 10), ("base", 0), ("sft", 5), ("rl_code", 4))
    text = body(*(with_answers(tmp_path, c, [i < n for i in range(10)]) for c, n in rights))
    rows = table_rows(text, "Summary")
    assert list(rows) == ["% right", "base", "SFT", "math RL", "code RL"]
    assert rows["% right"] == ["AIME 2024, avg@1"]
    low_high = r"\[\d+\.\d, \d+\.\d\]"
    cells = ("0.0 #", "50.0 # +50.0", "100.0 # +50.0", "40.0 # −60.0")
    assert [re.sub(low_high, "#", row[0]) for row in [*rows.values()][1:]] == [*cells]
    text = body(solved(tmp_path / "zero", "sft", 0))
    assert "None of AIME 2024 is solved: up to 26 % of problems" in text  # 1 - 0.05 ** (1 / 10)


def with_answers(root: Path, checkpoint: str, marks: list[bool], other: str = "") -> Artifact:
    """An evaluation with its answers: one to each of so many problems."""
    protocol = BenchmarkProtocol(name="aime24", k=1)
    problems = [problem(f"{other}question {i}") for i in range(len(marks))]
    rows = [scored(p.id, mark) for p, mark in zip(problems, marks, strict=True)]
    judged = {(p.id, 0): row for p, row in zip(problems, rows, strict=True)}
    artifact = evaluation(
        root, checkpoint, score_benchmark(protocol, problems, {}, judged, STATEMENT)
    )
    folder_with(artifact.folder, scores=rows, problems=problems)
    return artifact


def answered(*evaluation: Any) -> Evaluation:
    return Outputs([with_answers(*evaluation)]).evaluations()[0]


def test_a_change_is_paired_by_problem_and_is_noise_where_its_interval_holds_zero(tmp_path):
    half = [i % 2 == 0 for i in range(60)]
    before = answered(tmp_path, "base", half)
    # Six more are right and none is lost: the intervals of the two scores overlap by far.
    better = change_of(before, answered(tmp_path, "sft", [m or i < 12 for i, m in enumerate(half)]),
                       "aime24")  # fmt: skip
    assert better.low > 0
    assert str(better) == "+10.0"
    # As many more, but eight were lost and fourteen won.
    moved = [i < 16 if not m else i >= 16 for i, m in enumerate(half[:40])] + [True] * 12
    moved += half[52:]
    other = change_of(before, answered(tmp_path, "rl_math", moved), "aime24")
    assert other.points == pytest.approx(10.0)
    assert str(other) == "within noise"
    assert change_of(before, answered(tmp_path, "rl_code", half, "another "), "aime24") is None


@pytest.mark.parametrize("differs", [{"max_tokens": 1_024}, {"temperature": 1.0},
                                     {"grader_version": 2}, {"not_sent": ("top_k",)}])  # fmt: skip
def test_scores_that_were_sampled_or_judged_in_other_ways_are_no_change_of_the_model(
    tmp_path, differs
):
    base = answered(tmp_path, "base", [True] * 5)
    (result,) = answered(tmp_path, "sft", [False] * 5).results
    other = result.model_copy(update={"statement": STATEMENT.model_copy(update=differs)})
    after = Evaluation("evaluate_sft", (other,), tmp_path / "evaluate_sft")
    assert change_of(base, after, "aime24") is None


def test_the_rollouts_to_read_first_differ():
    nothing = {"index": 0, "prompt": "", "text": "", "answer": None, "correct": None}

    def one(stage: str, verdict: Any, step: int, name: str, reward: float) -> tuple[str, Graded]:
        traits = {"verdict": verdict, "step": step, "problem_id": name, "reward": reward}
        return stage, Graded(**traits, **nothing, pass_rate=None)

    rollouts = [one("math", "AC", 1, "a", 1.0), one("math", "AC", 1, "b", 0.9),
                one("code", "WA", 12, "c", -1.0), one("math", "WA", 12, "a", 0.0)]  # fmt: skip
    assert differing(rollouts) == [0, 2, 3]
    assert differing(rollouts[:1]) == [0]


def test_unscored_answers_are_counted_and_are_no_zeros_and_a_missing_sandbox_is_said(tmp_path):
    base = solved(tmp_path, "base", 0, unscored=10, sandbox="none")
    text = body(base, solved(tmp_path, "sft", 3, unscored=2))
    assert "12 of 20 answers could not be scored" in text
    assert table_rows(text, "Summary")["base"] == ["unscored"]
    assert "Judged without isolation" in text
    text = body(solved(tmp_path, "rl_math", 3))
    assert "without isolation" not in text
    fields = {*Statement.model_fields, *BenchmarkResult.model_fields} - {"name", "statement"}
    for name in fields:
        assert f"| {name.replace('_', ' ')} |" in text, name


def test_our_row_of_the_leaderboard_has_its_label_its_protocol_and_blanks(tmp_path):
    early = PAPER_PROTOCOLS[3].model_copy(update={"date_to": "2024-10-01"})
    results = (result(3, PAPER_PROTOCOLS[0].model_copy(update={"k": 1})), result(10, early),
               result(10, PAPER_PROTOCOLS[4]))  # fmt: skip
    inputs = [evaluation(tmp_path, "sft", *results)]
    aime, *blank, lcb, tokens, yarn, t, top_p, top_k, penalty = table_rows(
        body(*inputs), "Leaderboard")["SFT (tiny profile)"]  # fmt: skip
    assert (aime[:4], aime[-5:], lcb[:5]) == ("30.0", "avg@1", "100.0")
    assert "of 10 problems" in aime, "Table 1's columns have all problems of a benchmark"
    assert blank == ["", "", ""]  # a score on another window is in no column
    assert (tokens, yarn, t, top_p, top_k, penalty) == ("64K", "2.5", "0.6", "0.95", "20", "off")
    assert "SFT (unlabelled profile)" in table_rows(body(*inputs, profile=""), "Leaderboard")
    assert "Leaderboard" not in body(solved(tmp_path, "rl_math", 3, name="sums"))


def test_every_number_of_table_1_is_the_papers():
    if not PAPER.exists():
        pytest.skip("needs ../shared/paper/paper.txt")
    text = PAPER.read_text()
    table = text[text.index("AIME2024 avg@64") : text.index("Table 1:")]
    published = re.findall(r"^\s*(\S.*?)((?: \d\d\.\d){5})$", table, flags=re.M)
    template = table_rows((TEMPLATES / "leaderboard.md").read_text(), "Leaderboard")
    ours = {name.replace("Klear-Reasoner-8B, 64K budget", "w/ 64K Inference Budget"):
            tuple(float(cell.strip("†")) for cell in row[:5])
            for name, row in template.items() if re.match(r"\d", row[0])}  # fmt: skip
    assert ours == {name: tuple(map(float, scores.split())) for name, scores in published}
    k_of_columns = [int(title.rpartition("@")[2]) for title in template["Model"][:5]]
    assert [p.k for p in PAPER_PROTOCOLS] == k_of_columns


def test_the_funnel_adds_up_and_groups_reasons_by_kind(tmp_path):
    reasons = [f"same prompt as {i:016x}" for i in range(3)] + ["empty prompt"]
    lost = ["the endpoint gave no answer"]
    text = body(filtered(tmp_path, "dedup", reasons),
                filtered(tmp_path, "distill", lost, "samples"))  # fmt: skip
    rows = table_rows(text, "Data")
    assert rows["dedup"] == ["6", "2", "4", "same prompt as … (3); empty prompt (1)"]
    assert rows["distill"] == ["–", "2", "1", "the endpoint gave no answer (1)"]
    assert "<summary>dedup: 4 rejected, 66.7 %</summary>" in text
    row = table_rows(text, "Rejected, and why")["same prompt as …"]
    assert row == ["3", f"same prompt as {0:016x}"]
    reason = "'make 12 from 3' is a 9-gram of aime24 item 00deadbeef00cafe (coverage 0.25)"
    assert reason_kind(reason) == "… is a 9-gram of aime24 item … (coverage …)"


def test_disagreements_with_published_grades_are_all_there(tmp_path):
    p = [problem(f"q{i}") for i in range(6)]
    fields = {"index": 0, "model": "R1"}
    answers = [Sample(problem_id=x.id, text=EVIL, **fields) for x in p]
    grades = [Grade(problem_id=x.id, correct=i < 2, **fields) for i, x in enumerate(p)]
    stages = ("benchmarks", "agreement", "judge_agreement")
    questions, answered, judged = (tmp_path / stage for stage in stages)
    folder_with(questions, kept=p)
    folder_with(answered, samples=answers, grades=grades)
    folder_with(judged, scores=[scored(x.id, i < 4) for i, x in enumerate(p)])
    text = body(*(Artifact.of_folder(tmp_path / stage, stage) for stage in stages))
    row = table_rows(text, "Judge against published grades")["agreement"]
    assert (row[0], row[1][:6], row[2:]) == ("6", "66.7 %", ["2", "2", "2", "0", "0", "0"])
    assert text.count("published wrong, ours right (AC)</summary>") == 2


def test_plan_and_outcome_stand_beside_each_other_and_lead_to_every_run():
    run, stage = "http://127.0.0.1:5271/#/runs/ab", "http://127.0.0.1:5271/#/runs/cd"
    story = RunStory(
        name="tiny-seed0",
        links={"MLflow": run},
        planned=(
            PlannedStage(stage="dedup", action="reuse"),
            PlannedStage(stage="sft", why="new", seconds=60, bytes=2e9, assumed=True),
        ),
        happened=(
            StageOutcome(stage="dedup", action="computed", why="rows are missing", seconds=2),
            StageOutcome(stage="sft", action="computed", why="new", seconds=120, bytes=1500,
                         tokens=1000, url=stage),
        ),
    )  # fmt: skip
    rows = table_rows(body(story=story), "What ran")
    assert rows["dedup"][0] == "computed: rows are missing (planned to reuse)"
    figures = ["2 min 00 s (assumed 1 min 00 s)", "1.5 kB (assumed 2.0 GB)", "1,000", "–"]
    assert rows[f"[sft](<{stage}>)"] == ["computed: new", *figures]
    page = report_page([], "tiny", story).html()
    assert f'<a href="{stage}">sft</a>' in page
    assert f'href="{run}"' in page
    assert "2 stages: 2 computed. Computing took 2 min 02 s." in page


def test_a_run_costs_what_it_computed_and_not_what_it_reused():
    paid = (("distill", "reused", 250.0), ("rate", "computed", 3.0))
    outcomes = (StageOutcome(stage=s, action=a, seconds=9, cost=c) for s, a, c in paid)
    story = RunStory(name="tiny-seed0", happened=tuple(outcomes))
    assert "Cost: 3.00" in report_page([], "tiny", story).html()


def test_rl_has_curves_a_table_of_the_tokens_outside_the_clip_range_and_alarms_above(tmp_path):
    metrics = {"entropy": 1.0, "clip/high": 0.1, "clip/low": 0.2, "reward/mean": 0.5, "kl": 1.0}
    logs, counts = MetricsFile(tmp_path), StepLines(tmp_path / OFF_POLICY, after_step=0)
    for step in range(1, 9):
        logs.append(step, metrics | ({"alarm/withheld_gap": step} if step > 2 else {}))
        counts.write({"step": step, "update": 0, "tokens": [1] * CELLS, "gradient": [1] * CELLS})
    page = report_page([Artifact.of_folder(tmp_path, "rl_code")], "tiny")
    panels = ("reward", "entropy", "tokens_beyond_the_clip_range")
    assert [f.name for f in page.figures] == [f"rl_code_{name}" for name in panels]
    assert "### What GPPO keeps: tokens outside the clip range" in page.body
    assert metric_of("clip/high").title in page.figures[2].svg
    assert "| all | 100.00 | 66.67 | 66.67 | 33.33 | 100.00 | 33.33 |" in page.body
    assert "> - RL, code: alarms of withheld tests at step 3, 4, 5, 6, 7 and 1 more\n" in page.body
    assert "Alarms" not in body(sft(tmp_path / "calm"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_report_is_two_pages_and_the_plots_that_the_markdown_shows_in_any_order(tmp_path):
    inputs = [filtered(tmp_path, "dedup", ["twice"]), sft(tmp_path), solved(tmp_path, "sft", 10)]
    for name, order in (("a", inputs), ("b", inputs[::-1])):
        (tmp_path / name).mkdir()
        metrics = report.body(tmp_path / name, *order, settings=ReportSettings(profile="tiny"))
        assert metrics == {"stages": 3.0, "plots": 1.0, "aime24/avg": 1.0}
    assert files(tmp_path / "a") == files(tmp_path / "b")
    # the later line of a resumed step counts
    assert curves_of(inputs[1].folder / METRICS) == {"loss": {1: 3.0, 2: 2.0}}
    plots = {"plots/sft_loss.svg"}
    assert set(files(tmp_path / "a")) == {"report.md", "report.html", "scores.md"} | plots
    text = (tmp_path / "a" / "report.md").read_text()
    assert set(re.findall(r"\]\((plots/\S+?)\)", text)) == plots


def test_a_report_of_nothing_is_still_a_page(tmp_path):
    assert report.body(tmp_path, settings=ReportSettings()) == {"stages": 0.0, "plots": 0.0}
    text = (tmp_path / "report.md").read_text()
    assert "No checkpoint was evaluated" in text
    assert "nothing to report" in text
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_no_text_becomes_markup():
    page = page_of(EVIL)
    for html in (page.html(), MarkdownIt("commonmark", {"html": True}).render(page.markdown())):
        elements = Elements(html)
        assert not elements.tags & {"script", "img"}
        assert not [name for name, _ in elements.attributes if name.startswith("on")]
        assert not [
            v for name, v in elements.attributes if name == "href" and "javascript:" in v[:11]
        ]
        assert elements.summary == [" ".join(EVIL.split())]
        assert elements.pre == [EVIL.replace("\r\n", "\n") + "\n"]
    assert Elements(page.html()).tags <= Elements(page_of("x").html()).tags


def test_a_line_that_begins_like_markup_stays_a_paragraph_and_only_web_addresses_are_links():
    for start in ("# a", "- a", "1. a", "2) a", "+ a", "=== ", "> a", "    code", "---"):
        text = environment().from_string("{{ text|line }}").render(text=start)
        assert Elements(MarkdownIt().render(text)).tags == {"p"}, start
    assert link("here", "javascript:alert(1)") == "here"
    assert link("a_b", "http://x/a?b=1") == r"[a\_b](<http://x/a?b=1>)"
    assert link("a", "http://x/a|b>") == "a"


def test_pages_with_plots_ask_for_nothing_outside_themselves(tmp_path):
    body = "## First & second\n\n![a](plots/one.svg)\n"
    page = Elements(Page("Title", "s", "", body, [Figure("one", "<svg/>", "a")]).html())
    sources = [v for name, v in page.attributes if name in ("src", "href", "action")]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/svg+xml")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "one.svg").write_text("<svg></svg>")
    text = with_inline_plots("![a \\[b\\]](plots/one.svg)\n![lost](plots/two.svg)", tmp_path)
    assert len(re.findall(r"\(data:image/svg\+xml;base64,", text)) == 1
    assert "plots/two.svg" in text
