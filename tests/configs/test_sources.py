"""The catalogue: every source is pinned, and usable by name."""

import re

import pytest
from pydantic import ValidationError

from klear.configs.loading import ConfigError, load_profile
from klear.configs.settings.base import read_catalogue
from klear.configs.settings.sources import Source

NO_COMMIT_KNOWN = {"acereason_sft_math", "acereason_sft_code"}
NO_LICENCE_STATED = {"skywork_math", "skywork_code", "aime24", "aime25", "math500"}


@pytest.mark.parametrize("name", read_catalogue("catalogue"))
def test_every_entry_is_complete_and_pinned(name: str) -> None:
    source = Source(use=name)
    tables = [source, *(source.lookup.tables.values() if source.lookup else ())]
    pinned = all(re.fullmatch("[0-9a-f]{40}", table.revision) for table in tables)
    assert pinned == (name not in NO_COMMIT_KNOWN)
    assert bool(source.licence) == (name not in NO_LICENCE_STATED)
    has_gold = bool(source.answer_field if source.domain == "math" else source.tests_field)
    assert has_gold or source.gold_optional


def test_keys_beside_use_win_and_files_of_ones_own_replace_the_hub() -> None:
    source = Source.model_validate({"use": "apps", "name": "mine", "limit": 5, "revision": "main"})
    assert (source.name, source.limit, source.revision) == ("mine", 5, "main")
    assert (source.dataset, source.domain) == ("codeparrot/apps", "code")
    local = Source(use="taco", files=("mirror/*.parquet",))
    assert (local.kind, local.licence) == ("files", "apache-2.0")
    assert local.prompt_parts == Source(use="taco").prompt_parts


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("paper", ["collect.sources.0.use=skywork-math"])
    (line,) = caught.value.problems
    assert line.startswith("collect.sources.0: the catalogue has no source 'skywork-math'")
    assert "did you mean skywork_math?" in line


def test_top_k_ranks_the_papers_sources_by_their_rank() -> None:
    paper = load_profile("paper", ["select.top_k_sources=2"])
    assert paper.mixture.math_sources == ("openthoughts3_math", "numina_math")
    assert {s.name for s in paper.collect.sources if s.rank} == set(paper.distill.sources)
    assert load_profile("paper").mixture == load_profile("paper").select


def test_sources_of_equal_rank_count_as_one() -> None:
    """OpenCodeReasoning comes in two halves: half of it would not be the best source."""
    halves = ("opencodereasoning", "opencodereasoning_looked_up")
    found = [load_profile("paper", [f"select.top_k_sources={k}"]).mixture for k in (1, 2, 9)]
    assert [m.code_sources[:2] for m in found] == [halves] * 3
    assert [m.code_sources[2:] for m in found[:2]] == [(), ("taco",)]
    assert [len(m.math_sources) for m in found] == [1, 2, 3]
    assert {m.top_k_sources for m in found} == {None}  # else the list would be cut once more


def test_without_equal_ranks_the_mixture_is_what_it_was_for_the_cache() -> None:
    """The list in full and the K beside it: keys of finished runs depend on both."""
    kept = ["openthoughts3_math", "numina_math", "taco", "apps"]
    only = ["collect.sources=[" + ", ".join(f"{{use: {name}}}" for name in kept) + "]"]
    stages = [f"{s}.sources=[]" for s in ("distill", "rate", "filter_tests", "sample")]
    found = load_profile("paper", [*only, *stages, "select.top_k_sources=1"]).mixture
    assert (found.math_sources, found.code_sources) == (tuple(kept[:2]), tuple(kept[2:]))
    assert found.top_k_sources == 1


def test_top_k_without_any_ranking_is_a_wrong_configuration() -> None:
    with pytest.raises(ConfigError, match="top_k_sources needs a ranking"):
        load_profile("tiny", ["select.top_k_sources=1"])


def test_the_paper_rates_and_rewards_only_what_can_be_judged() -> None:
    paper = load_profile("paper")
    without_gold = {
        s.name
        for s in paper.collect.sources
        if not (s.answer_field if s.domain == "math" else s.tests_field)
    }
    assert paper.rate is not None
    assert not without_gold & {*paper.rate.sources, *paper.filter_tests.sources}
    assert paper.filter_tests.sources == paper.sample.sources


@pytest.mark.parametrize("files", [("a.csv",), ("a.jsonl", "b.parquet")])
def test_the_files_of_a_dataset_are_of_one_known_format(files: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="data_files must be of one format: jsonl, json"):
        Source(name="s", kind="hub", dataset="a/b", data_files=files)
