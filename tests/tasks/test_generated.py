"""Generated sources: seeds, planted duplicates and planted benchmark problems."""

from collections import Counter
from pathlib import Path

import pytest

from configs.settings.sources import CollectSettings, Source
from eval.records import Problem, normalise_prompt
from eval.tables import read_table
from tasks.data.collect import collect


def collected(out: Path, *sources: Source, seed: int = 0) -> list[Problem]:
    out.mkdir(parents=True, exist_ok=True)
    collect.body(out, settings=CollectSettings(sources=sources), seed=seed)
    return list(read_table(out / "kept.parquet", Problem))


def countdown(**fields) -> Source:
    return Source(**{"name": "cd", "kind": "generated", "family": "countdown", **fields})


def test_generated_sources_follow_the_seed_unless_it_is_fixed(tmp_path):
    def prompts(name: str, source: Source, seed: int) -> list[str]:
        return [p.prompt for p in collected(tmp_path / name, source, seed=seed)]

    free, fixed = countdown(size=30), countdown(size=30, fixed_seed=3)
    assert prompts("a", free, 0) == prompts("b", free, 0) != prompts("c", free, 1)
    assert prompts("d", fixed, 0) == prompts("e", fixed, 1)


@pytest.mark.parametrize("family", ["countdown", "by_example"])
def test_planted_problems_are_the_benchmarks_own_and_planted_duplicates_real(tmp_path, family):
    domain = "math" if family == "countdown" else "code"
    shared = {"kind": "generated", "family": family, "domain": domain}
    bench = Source(name="bench", split_part="test", fixed_seed=7, size=100, **shared)
    train = Source(
        name="train",
        size=1000,
        duplicate_share=0.1,
        contaminated_share=0.05,
        contaminated_seed=7,
        **shared,
    )
    kept = collected(tmp_path / "out", train, bench)
    rows = [p for p in kept if p.source == "train"]
    held_out = {p.id for p in kept if p.source == "bench"}
    assert len(rows) == 1000
    assert len({p.id for p in rows}) == 900
    assert len({p.id for p in rows} & held_out) == 50


def test_a_duplicate_follows_its_original_and_differs_in_typesetting_at_times(tmp_path):
    rows = collected(tmp_path / "out", countdown(size=500, duplicate_share=0.2))
    seen: dict[str, str] = {}
    kinds: Counter[bool] = Counter()
    for p in rows:
        if p.id in seen:
            assert normalise_prompt(p.prompt) == normalise_prompt(seen[p.id])
            kinds[p.prompt == seen[p.id]] += 1
        else:
            assert p.prompt.startswith("Make ")
            assert "  " not in p.prompt
        seen.setdefault(p.id, p.prompt)
    assert sum(kinds.values()) == 100
    assert min(kinds[True], kinds[False]) > 20


def test_flawed_tests_fail_a_right_program_and_leave_the_other_problems_alone(tmp_path):
    shared = {"name": "ex", "kind": "generated", "family": "by_example", "domain": "code"}
    sound = collected(tmp_path / "a", Source(**shared, size=400))
    flawed = collected(tmp_path / "b", Source(**shared, size=400, flawed_tests_share=0.25))
    assert [p.prompt for p in flawed] == [p.prompt for p in sound]
    wrong = []
    for before, after in zip(sound, flawed, strict=True):
        assert before.tests is not None
        assert after.tests is not None
        pairs = list(zip(before.tests.cases, after.tests.cases, strict=True))
        wrong.append(sum(a != b for a, b in pairs))
        assert wrong[-1] in (0, len(pairs) // 2)
        assert all(int(b.output) == int(a.output) + 1 for a, b in pairs if a != b)
    assert 60 < sum(map(bool, wrong)) < 140  # 100 expected, standard deviation 8.7
