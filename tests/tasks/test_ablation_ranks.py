"""Which of several results of one experiment is shown, and which lines of the file stay."""

from configs.ablation import FOLDER, load_ablation
from tasks.ablation_outcomes import Finished, best, newest, read_finished, united
from tasks.shared_store import SharedStore
from tasks.store import Store
from tasks.store_care import ABLATE_VERSION
from tests.tasks.ablations_by_hand import SPEC, cell_of, published, ranked


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


def test_figures_of_other_rules_or_contrasts_are_made_anew_from_the_runs(tmp_path):
    store = Store(tmp_path)
    named = [(arm.name, seed) for seed in range(3) for arm in SPEC.arms]
    inputs = [ref for arm, seed in named for ref in cell_of(store, arm, seed)]
    published(store, "old", 9, "2026-01-01", version=ABLATE_VERSION - 1, cells=named, inputs=inputs)
    found = newest(store, SPEC, "tiny")
    assert found is not None
    assert (found.rules, found.outcome.seeds) == (ABLATE_VERSION, 3)
    assert {f.points for f in found.outcome.findings} == {100.0}

    fewer = SPEC.model_copy(update={"contrasts": SPEC.contrasts[:1]})
    other = newest(store, fewer, "tiny")
    assert other is not None
    assert {f.than for f in other.outcome.findings} == {"α=0"}

    (store.folder("rl_math", "arm0-seed0") / "weights").unlink()
    assert newest(store, SPEC, "tiny") is None


def test_figures_are_made_anew_from_runs_that_are_on_the_shared_store_alone(tmp_path):
    url = (tmp_path / "objects").as_uri()
    elsewhere, here = (SharedStore(tmp_path / name, url) for name in "ab")
    named = [(arm.name, seed) for seed in range(3) for arm in SPEC.arms]
    inputs = [ref for arm, seed in named for ref in cell_of(elsewhere, arm, seed)]
    published(here, "old", 9, "2026-01-01", version=ABLATE_VERSION - 1, cells=named, inputs=inputs)
    found = newest(here, SPEC, "tiny")
    assert found is not None
    assert found.outcome.seeds == 3


def test_an_older_line_says_that_its_intervals_are_of_an_older_rule(tmp_path):
    published(Store(tmp_path), "a", 5, "2026-01-01")
    new = newest(Store(tmp_path), SPEC, "tiny")
    assert new is not None
    line = new.model_dump(mode="json")
    del line["rules"]
    old = Finished.model_validate(line | {"commit": "2cede768d7c0600f+", "created": "2026-01-02"})
    assert old.made.startswith("on 2026-01-02 at commit 2cede76 with changes, grader version 0")
    assert "rule 3" in old.made
    assert "as wide or wider" in old.made
    assert "rule" not in new.made
    assert best(SPEC, "tiny", old, new) == new
    assert united([old, new]) == [new]


def test_the_lines_that_are_committed_answer_their_experiments():
    """A flag on a contrast or a part that is not tested voids no result."""
    known = read_finished(FOLDER / "RESULTS.jsonl")
    for name in ("fig2_clipping", "fig5_zero_advantage", "table6_lm_weight", "table3_teacher"):
        assert best(load_ablation(name), "tiny", *known) is not None, name
    assert {f.digest for f in known} == {f.digest for f in united(known)}
