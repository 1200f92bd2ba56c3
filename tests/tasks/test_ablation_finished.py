"""The committed page is made of what the store holds, and invents nothing."""

import json
from collections.abc import Sequence

import pytest

from configs.loading import ConfigError
from configs.settings.ablation import FOLDER, Ablation, load_ablation
from tasks.ablation.finished import (
    JUDGE,
    RESULTS,
    Finished,
    best,
    cost_of,
    newest,
    read_finished,
    united,
    write_finished,
)
from tasks.ablation.outcome import Cell, Outcome, outcome_of
from tasks.ablation.pages import NOT_RUN, Cost, Experiment, results_page
from tasks.store.care import ABLATE, ABLATE_VERSION
from tasks.store.store import InputRef, Manifest, Store
from tasks.tracking.machine_load import MARKER

SPEC, OTHER = load_ablation("table6_lm_weight"), load_ablation("fig3_reward")


def outcome(seeds: int, score: float = 0.6) -> Outcome:
    def cell(arm: str, seed: int) -> Cell:
        means = {f"p{i}": score if arm == "α=0.1" else 0.4 for i in range(10)}
        return Cell(arm, seed, dict.fromkeys(SPEC.scale("tiny").benchmarks, means), {})

    cells = [cell(arm.name, seed) for arm in SPEC.arms for seed in range(seeds)]
    return outcome_of(SPEC, "tiny", cells)


def published(store: Store, key: str, seeds: int, created: str, spec: Ablation = SPEC,
              inputs: Sequence[Manifest] = (), score: float = 0.6,
              version: int = ABLATE_VERSION) -> None:  # fmt: skip
    """A result as the experiment's last stage would publish it."""
    work = store.work(ABLATE + SPEC.name, key)
    work.mkdir(parents=True)
    (work / RESULTS).write_text(outcome(seeds, score).model_dump_json())
    settings = {"ablation": spec.model_dump(mode="json"), "profile": "tiny"}
    refs = [InputRef(stage=m.stage, key=m.key, digest=m.digest) for m in inputs]
    store.publish(work, stage=ABLATE + SPEC.name, version=version, key=key, settings=settings,
                  inputs=refs, seconds=1.0, pipeline_run="r", created=created)  # fmt: skip


def found(store: Store, spec: Ablation = SPEC) -> Finished:
    one = newest(store, spec, "tiny")
    assert one is not None
    return one


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


def test_the_result_with_most_seeds_counts_and_of_these_the_latest(store):
    assert newest(store, SPEC, "tiny") is None
    published(store, "a", 5, "2026-01-02", score=0.7)
    published(store, "b", 3, "2026-01-03")
    published(store, "c", 5, "2026-01-01")
    assert found(store).outcome == outcome(5, score=0.7)
    assert newest(store, SPEC, "paper") is None


def test_a_result_of_other_rules_or_of_old_settings_or_damaged_does_not_count(store):
    published(store, "old", 9, "2026-01-03", version=ABLATE_VERSION - 1)
    published(store, "foreign", 9, "2026-01-03")
    for key in "abc":
        published(store, key, 5, "2026-01-01")
    folder = store.root / f"{ABLATE}{SPEC.name}"
    (folder / "old" / RESULTS).write_text("{}")
    told = json.loads((folder / "foreign" / "manifest.json").read_text())
    told["settings"]["ablation"]["a_setting_of_old"] = 1
    (folder / "foreign" / "manifest.json").write_text(json.dumps(told))
    (folder / "b" / "manifest.json").write_text("{")
    (folder / "c" / RESULTS).unlink()
    assert found(store).outcome.seeds == 5
    (folder / "a" / RESULTS).write_text("")
    assert newest(store, SPEC, "tiny") is None


def test_a_result_counts_only_for_the_experiment_that_it_answers(store):
    """Another setting or direction is another question; another sentence of the paper, or another
    choice of what the claim rests on, is not."""
    scale = SPEC.scale("tiny").model_copy(update={"set": {"rl_math.steps": 3}})
    changed = SPEC.model_copy(update={"scales": {**SPEC.scales, "tiny": scale}})
    published(store, "a", 5, "2026-01-01", spec=changed)
    assert newest(store, SPEC, "tiny") is None
    assert best(SPEC, "tiny", found(store, changed)) is None

    published(store, "b", 5, "2026-01-01")
    contrasts = tuple(c.model_copy(update={"says": "…"}) for c in SPEC.contrasts)
    extra = tuple(c.model_copy(update={"part_of_claim": False}) for c in contrasts[1:])
    retold = {"contrasts": (contrasts[0], *extra), "claim": "…", "untested": "…"}
    assert found(store, SPEC.model_copy(update=retold)) == found(store)
    turned = tuple(
        c.model_copy(update={"better": c.than[0], "than": (c.better,)}) for c in contrasts
    )
    assert newest(store, SPEC.model_copy(update={"contrasts": turned}), "tiny") is None


def test_a_result_of_another_store_stays_until_one_with_as_many_seeds(store, tmp_path):
    file = tmp_path / "RESULTS.jsonl"
    assert read_finished(file) == []
    there = Store(tmp_path / "there")
    published(there, "a", 5, "2026-01-01", score=0.7)
    write_finished(file, [found(there)])
    (kept,) = read_finished(file)
    assert kept == found(there)
    published(store, "b", 3, "2026-01-02")
    assert best(SPEC, "tiny", found(store), kept) == kept
    published(store, "c", 5, "2026-01-03")
    assert best(SPEC, "tiny", found(store), kept) == found(store)
    file.write_text('{"asked": {}}\n')
    with pytest.raises(ConfigError, match=r"RESULTS\.jsonl, line 1"):
        read_finished(file)


def test_enough_seeds_come_before_the_newest_grader_and_no_record_of_more_is_dropped(store):
    def ranked(grader: int, seeds: int) -> Finished:
        """A result of scores that this grader judged."""
        mine = Store(store.root / str(grader))
        work = mine.work(JUDGE, "j")
        work.mkdir(parents=True)
        made = mine.publish(work, stage=JUDGE, version=grader, key="j", settings={},
                            seconds=1.0, pipeline_run="r", created="2026")  # fmt: skip
        published(mine, "g", seeds, f"2026-01-0{grader}", inputs=[made])
        assert found(mine).grader == grader
        return found(mine)

    many, five, again, one = ranked(2, 9), ranked(3, 5), ranked(4, 5), ranked(5, 1)
    assert best(SPEC, "tiny", five, one, many) == five  # one seed gives no interval
    assert best(SPEC, "tiny", five, one, many, again) == again
    assert united([one, five, many, again]) == [many, again, one]  # the only record of nine seeds
    elsewhere = [five.model_copy(update={"asked": {**five.asked, **other}})
                 for other in ({"profile": "single_gpu"}, {"arms": []})]  # fmt: skip
    assert len(united([five, *elsewhere, again])) == 3


def test_a_shared_stage_costs_once_and_time_at_rest_is_no_time(store):
    work = store.work("sft", "k")
    (work / "logs").mkdir(parents=True)
    lines = [{"step": i, "time": t, "metrics": {MARKER: 50.0}}
             for i, t in enumerate((100.0, 102.0, 104.0, 5_000.0))]  # fmt: skip
    (work / "logs" / "system.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    made = store.publish(work, stage="sft", version=1, key="k", settings={}, seconds=8.0,
                         pipeline_run="r", hardware="4 × a CPU", created="2026")  # fmt: skip
    for key in ("a", "b"):
        published(store, key, 5, "2026-01-01", inputs=[made])
    cost = cost_of([found(store), found(store)])
    # three pauses of 2 s, then 4,896 s between two attempts, of which one pause (4,900 s / 200)
    # counts: half of four cores throughout
    assert (cost.stages, cost.seconds) == (1, 8.0)
    assert cost.cpu_seconds == pytest.approx((6 + 24.5) * 4 * 0.5)


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
    text = results_page("tiny", [Experiment(SPEC, outcome(5, score=0.2))], Cost(0, 0.0, 0.0)).body
    assert text.count("reversed |") == 1 + 6  # the claim; three contrasts on both benchmarks


def test_an_older_line_says_that_its_intervals_are_of_an_older_rule(store):
    published(store, "a", 5, "2026-01-01")
    new = found(store)
    line = new.model_dump(mode="json")
    del line["rules"]
    old = Finished.model_validate(line | {"commit": "2cede768d7c0600f+", "created": "2026-01-02"})
    assert old.made.startswith("on 2026-01-02 at commit 2cede76 with changes, grader version 0")
    assert "by the older rule 3" in old.made
    assert "rule" not in new.made
    assert united([old, new]) == [new]


def test_the_lines_that_are_committed_answer_their_experiments():
    """A flag on a contrast or a part that is not tested voids no result."""
    known = read_finished(FOLDER / "RESULTS.jsonl")
    for name in ("fig2_clipping", "fig5_zero_advantage", "table6_lm_weight", "table3_teacher"):
        assert best(load_ablation(name), "tiny", *known) is not None, name
    assert {f.digest for f in known} == {f.digest for f in united(known)}
