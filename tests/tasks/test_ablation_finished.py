"""The committed page is made of what the store holds, and invents nothing."""

import json

import pytest

from configs.loading import ConfigError
from configs.settings.ablation import FOLDER, load_ablation
from tasks.ablation.finished import (
    RESULTS,
    Finished,
    best,
    cost_of,
    cpu_seconds,
    newest,
    read_finished,
    united,
    write_finished,
)
from tasks.ablation.pages import NOT_RUN, Cost, Experiment, results_page
from tasks.store.care import ABLATE, ABLATE_VERSION
from tasks.store.store import InputRef, Store
from tasks.tracking.machine_load import MARKER
from tests.tasks.ablations_by_hand import SPEC, outcome, published, ranked

OTHER = load_ablation("fig3_reward")


def test_the_result_with_most_seeds_counts_and_of_these_the_latest(tmp_path):
    store = Store(tmp_path)
    assert newest(store, SPEC, "tiny") is None
    published(store, "a", 5, "2026-01-02", score=0.7)
    published(store, "b", 3, "2026-01-03")
    published(store, "c", 5, "2026-01-01")
    found = newest(store, SPEC, "tiny")
    assert found is not None
    assert found.outcome == outcome(5, score=0.7)
    assert newest(store, SPEC, "paper") is None


def test_a_result_made_by_other_rules_does_not_count_however_it_is_written(tmp_path):
    store = Store(tmp_path)
    published(store, "old", 9, "2026-01-03", version=ABLATE_VERSION - 1)
    (store.root / f"{ABLATE}{SPEC.name}" / "old" / RESULTS).write_text("{}")
    assert newest(store, SPEC, "tiny") is None
    published(store, "new", 5, "2026-01-01")
    found = newest(store, SPEC, "tiny")
    assert found is not None
    assert found.outcome.seeds == 5


def test_a_damaged_result_does_not_count_and_ends_nothing(tmp_path):
    store = Store(tmp_path)
    for key in "abc":
        published(store, key, 5, "2026-01-01")
    folder = store.root / f"{ABLATE}{SPEC.name}"
    (folder / "b" / "manifest.json").write_text("{")
    (folder / "c" / RESULTS).unlink()
    assert newest(store, SPEC, "tiny") is not None
    (folder / "a" / RESULTS).write_text("")
    assert newest(store, SPEC, "tiny") is None


def test_a_result_of_an_experiment_that_was_changed_since_does_not_count(tmp_path):
    scale = SPEC.scale("tiny").model_copy(update={"set": {"rl_math.steps": 3}})
    changed = SPEC.model_copy(update={"scales": {**SPEC.scales, "tiny": scale}})
    published(Store(tmp_path), "a", 5, "2026-01-01", spec=changed)
    assert newest(Store(tmp_path), SPEC, "tiny") is None
    assert newest(Store(tmp_path), changed, "tiny") is not None


def test_a_result_of_another_store_stays_on_the_page_until_one_with_as_many_seeds(tmp_path):
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    file = tmp_path / "RESULTS.jsonl"
    assert read_finished(file) == []
    published(there, "a", 5, "2026-01-01", score=0.7)
    write_finished(file, [f for f in [newest(there, SPEC, "tiny")] if f])
    (kept,) = read_finished(file)
    assert kept == newest(there, SPEC, "tiny")

    published(here, "b", 3, "2026-01-02")
    assert best(SPEC, "tiny", newest(here, SPEC, "tiny"), kept) == kept
    published(here, "c", 5, "2026-01-03")
    found = best(SPEC, "tiny", newest(here, SPEC, "tiny"), kept)
    assert found is not None
    assert found.outcome == outcome(5)


def test_results_of_other_profiles_and_of_experiments_as_they_were_stay_in_the_file(tmp_path):
    published(Store(tmp_path), "a", 5, "2026-01-01")
    tiny = newest(Store(tmp_path), SPEC, "tiny")
    assert tiny is not None
    others = [tiny.model_copy(update={"asked": {**tiny.asked, **other}})
              for other in ({"profile": "single_gpu"}, {"arms": []})]  # fmt: skip
    later = tiny.model_copy(update={"created": "2026-01-02"})
    kept = united([tiny, *others, later])
    assert len(kept) == 3
    assert later in kept
    assert tiny not in kept


def test_a_sentence_of_the_paper_may_be_quoted_otherwise_and_the_result_stands(tmp_path):
    published(Store(tmp_path), "a", 5, "2026-01-01")
    contrasts = tuple(c.model_copy(update={"says": "…"}) for c in SPEC.contrasts)
    retold = SPEC.model_copy(update={"contrasts": contrasts, "claim": "…"})
    assert newest(Store(tmp_path), retold, "tiny") is not None
    extra = tuple(c.model_copy(update={"part_of_claim": False}) for c in SPEC.contrasts[1:])
    fewer = SPEC.model_copy(update={"contrasts": (SPEC.contrasts[0], *extra), "untested": "…"})
    assert newest(Store(tmp_path), fewer, "tiny") is not None
    turned = tuple(
        c.model_copy(update={"better": c.than[0], "than": (c.better,)}) for c in contrasts
    )
    other = SPEC.model_copy(update={"contrasts": turned})
    assert newest(Store(tmp_path), other, "tiny") is None


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "RESULTS.jsonl").write_text('{"asked": {}}\n')
    with pytest.raises(ConfigError, match=r"RESULTS\.jsonl, line 1"):
        read_finished(tmp_path / "RESULTS.jsonl")


def test_a_line_about_an_experiment_that_was_changed_since_does_not_count(tmp_path):
    published(Store(tmp_path), "a", 5, "2026-01-01")
    kept = newest(Store(tmp_path), SPEC, "tiny")
    changed = SPEC.model_copy(update={"arms": SPEC.arms[::-1]})
    assert best(changed, "tiny", kept) is None
    assert best(OTHER, "tiny", kept) is None


def test_a_shared_stage_costs_once_and_time_at_rest_is_no_time(tmp_path):
    store = Store(tmp_path)
    work = store.work("sft", "k")
    (work / "logs").mkdir(parents=True)
    lines = [{"step": i, "time": t, "metrics": {MARKER: 50.0}}
             for i, t in enumerate((100.0, 102.0, 104.0, 5_000.0))]  # fmt: skip
    (work / "logs" / "system.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    made = store.publish(work, stage="sft", version=1, key="k", settings={}, seconds=8.0,
                         pipeline_run="r", hardware="4 × a CPU", created="2026")  # fmt: skip
    ref = InputRef(stage="sft", key="k", digest=made.digest)
    for key in ("a", "b"):
        published(store, key, 5, "2026-01-01", inputs=(ref,))
    found = newest(store, SPEC, "tiny")
    assert found is not None
    cost = cost_of([found, found])
    # three pauses of 2 s, then 4,896 s between two attempts, of which one pause (4,900 s / 200)
    # counts: half of four cores throughout
    assert (cost.stages, cost.seconds) == (1, 8.0)
    assert cost.cpu_seconds == pytest.approx((6 + 24.5) * 4 * 0.5)
    assert cpu_seconds(tmp_path / "none", 4) == 0


def test_the_page_has_every_claim_and_says_which_were_not_tried():
    cost = Cost(stages=3, seconds=70.0, cpu_seconds=3_600.0)
    known = [Experiment(SPEC, outcome(5), cost, "on a day"), Experiment(OTHER)]
    text = results_page("tiny", known, cost).markdown()
    assert "Run on a day." in text
    rows = [line for line in text.splitlines() if line.startswith("| Table 6")]
    assert len(rows) == 1 + 3  # the claim, and α = 0.1 over three others
    assert all("AIME 2024 +1.2, AIME 2025 +2.4" in row for row in rows[:2])
    assert all("+20.0" in row and "confirmed" in row for row in rows)
    missing = [line for line in text.splitlines() if line.startswith("| Figure 3")]
    assert len(missing) == 1 + 1
    assert all(NOT_RUN in row and "LCB v5 +1.8" in row for row in missing)  # 61.0 and 59.2
    assert "1 of 2 experiments have run" in text
    assert "1.0 CPU-core hours" in text
    assert "klear ablate table6\\_lm\\_weight --profile tiny --seeds 5" in text


def test_a_reversed_claim_stays_on_the_page():
    text = results_page("tiny", [Experiment(SPEC, outcome(5, score=0.2))], Cost(0, 0.0, 0.0)).body
    assert text.count("reversed |") == 1 + 6  # the claim; three contrasts on both benchmarks


def test_enough_seeds_come_before_the_newest_grader_and_that_before_more_seeds(tmp_path):
    whole, newer, more = (
        ranked(Store(tmp_path / str(grader)), grader, seeds)
        for grader, seeds in ((3, 5), (4, 1), (2, 9))
    )
    assert (whole.grader, whole.outcome.seeds) == (3, SPEC.seeds)
    assert best(SPEC, "tiny", whole, newer) == whole  # one seed gives no interval
    assert best(SPEC, "tiny", whole, more) == whole
    newest_whole = ranked(Store(tmp_path / "5"), 5, 5)
    assert best(SPEC, "tiny", whole, newer, more, newest_whole) == newest_whole


def test_a_line_with_more_seeds_than_all_newer_ones_is_never_dropped(tmp_path):
    """It may be the only record of five seeds that one seed by a new grader follows."""
    many, five, again, one = (
        ranked(Store(tmp_path / str(grader)), grader, seeds)
        for grader, seeds in ((2, 9), (3, 5), (4, 5), (5, 1))
    )
    assert united([one, five, many, again]) == [many, again, one]
    assert united([many, again, one, one]) == [many, again, one]


def test_an_older_line_says_that_its_intervals_are_of_an_older_rule(tmp_path):
    published(Store(tmp_path), "a", 5, "2026-01-01")
    new = newest(Store(tmp_path), SPEC, "tiny")
    assert new is not None
    line = new.model_dump(mode="json")
    del line["rules"]
    old = Finished.model_validate(line | {"commit": "2cede768d7c0600f+", "created": "2026-01-02"})
    assert old.made.startswith("on 2026-01-02 at commit 2cede76 with changes, grader version 0")
    assert "by the older rule 3" in old.made
    assert "rule" not in new.made
    assert best(SPEC, "tiny", old, new) == new
    assert united([old, new]) == [new]


def test_the_lines_that_are_committed_answer_their_experiments():
    """A flag on a contrast or a part that is not tested voids no result."""
    known = read_finished(FOLDER / "RESULTS.jsonl")
    for name in ("fig2_clipping", "fig5_zero_advantage", "table6_lm_weight", "table3_teacher"):
        assert best(load_ablation(name), "tiny", *known) is not None, name
    assert {f.digest for f in known} == {f.digest for f in united(known)}
