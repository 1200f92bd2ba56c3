"""Properties every settings class has, what no setting may say, the catalogue of sources, of which
every entry is pinned, and the table of metrics."""

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from klear.configs.loading import load_profile
from klear.configs.metrics import display_order, metrics
from klear.configs.settings.base import Runtime, Settings, key_of, read_catalogue
from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import STAGES
from klear.configs.settings.sources import Source
from klear.configs.settings.training import RLSettings


def subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_class_is_frozen_forbids_unknown_keys_and_names_its_runtime_so():
    """`runtime` and `*_runtime` tell the reader that a change costs no recomputation."""
    classes = [c for c in subclasses(Settings) if c.__module__.startswith("klear.configs.")]
    assert RLSettings in classes
    for each in classes:
        assert each.model_config.get("frozen"), each
        assert each.model_config.get("extra") == "forbid", each
        for name, field in each.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Runtime):
                assert name == "runtime" or name.endswith("_runtime"), f"{each.__name__}.{name}"


HOW = (
    "sft.runtime.threads=7", "rl_math.judge.runtime.workers=3",
    "rl_math.engine_runtime.batch_size=9",
    "topology.nodes=2", "topology.assume.train_mfu=0.3", "collect.root=/far", "stall_minutes=5",
    "collect.runtime.workers=4",
    "distill.engine.base_url=http://a/v1", "distill.engine.served_model=x",
    "distill.engine.api_key_env=MINE", "distill.engine.api_key_block=ours",
    "distill.engine.runtime.concurrency=7",
    "rl_math.keep_every=0", "evaluate.learning_curve=null",
)  # fmt: skip
WHAT = (
    "sft.epochs=1", "rl_math.judge.max_tests=3", "distill.engine.model=r2", "rl_math.keep_every=2",
    "collect.sources.countdown.licence=mine", "sft.runtime.precision=bf16",
    "evaluate.engine_runtime.dtype=bfloat16",
)  # fmt: skip


@pytest.mark.parametrize("override", [*HOW, *WHAT])
def test_the_key_sees_what_and_ignores_how_where_and_who_pays(override: str):
    same = key_of(load_profile("tiny", [override])) == key_of(load_profile("tiny"))
    assert same == (override in HOW)


def test_a_profile_knows_which_stages_it_leaves_out():
    assert (STAGES[0], STAGES[-1], len(set(STAGES))) == ("collect", "report", len(STAGES))
    rating, checking = {"rate", "judge_rate"}, {"agreement", "judge_agreement"}
    assert load_profile("tiny").stages_left_out == rating | checking
    assert load_profile("replay").stages_left_out == rating
    assert load_profile("paper").stages_left_out == checking


@pytest.mark.parametrize(
    "place", ["distill.engine={kind: openai, model: m, base_url: URL}",
              "rl_math.runtime.vllm_server_url=URL"],
)  # fmt: skip
def test_an_address_holds_no_secret_and_the_message_does_not_repeat_one(place: str):
    """Addresses are written down in many places."""
    load_profile("tiny", [place.replace("URL", '"https://gpu-1:8000/v1"')])
    for secret in ("http://user:hidden@host", "http://hidden@host", "http://host/v1?key=hidden"):
        with pytest.raises(ConfigError, match="_url: must hold no user, password or") as refused:
            load_profile("tiny", [place.replace("URL", f'"{secret}"')])
        assert "hidden" not in str(refused.value)
    for wrong in ("gpu-1:8000", "ftp://gpu-1"):
        with pytest.raises(ConfigError, match="http:// or https://"):
            load_profile("tiny", [place.replace("URL", f'"{wrong}"')])


def test_a_price_of_the_catalogue_has_a_host_a_model_two_amounts_and_a_date():
    listed = read_catalogue("prices")
    assert {"source", "date", "currency"} < set(listed)
    for models in listed["hosts"].values():
        for price in models.values():
            assert set(price) == {"input", "output"}
            assert 0 < price["input"] <= price["output"]


def test_prices_are_found_by_host_and_either_name_and_the_settings_win():
    def prices(base_url: str, **more):
        engine = {"kind": "openai", "model": "m", "base_url": base_url, **more}
        return EngineSettings.model_validate(engine).prices

    deployment = "https://mine.services.ai.azure.com/openai/v1"
    of_deployment = prices(deployment, served_model="deepseek-r1")
    assert of_deployment
    assert of_deployment[:2] == (1.35, 5.4)
    assert of_deployment.source.startswith("USD, DeepSeek-R1 at mine.services.ai.azure.com, 2026-")
    assert prices(deployment) is None
    assert prices("http://localhost:8000/v1", model="DeepSeek-R1") is None
    runtime = {"output_price": 2.0}
    assert prices(deployment, model="DeepSeek-R1", runtime=runtime) == (0.0, 2.0, "")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("evaluate.protocols.countdown_test.date_from=2025-02-30", "out of range"),
        ("evaluate.protocols.countdown_test.date_to='20250228'", "must be written like 2025-02-28"),
        ("select.math_sources=[countdwn]", "select.math_sources: 'countdwn' is not collected"),
        ("topology.rl_gpus=2", "must be whole nodes, .* 1 × 0"),
        ("collect.sources.0={name: mine, files: [a.jsonl], size: 10}", "use limit"),
        ("collect.sources.0={use: skywork-math}", "no source 'sky.* did you mean skywork_math"),
        ("select.top_k_sources=1", "top_k_sources needs a ranking"),
        *((f"distill.engine={{kind: {kind}}}", f"engine kind={kind} needs {field}")
          for kind, field in (("openai", "model"), ("vllm", "model"), ("recorded", "files"))),
        *((f"collect.sources.0={{name: s, kind: hub, dataset: a/b, data_files: [{files}]}}",
           "data_files must be of one format: jsonl, json")
          for files in ("a.csv", "a.jsonl, b.parquet")),
    ],
)  # fmt: skip
def test_what_would_quietly_mean_something_else_is_refused(override: str, says: str):
    with pytest.raises(ConfigError, match=says):
        load_profile("tiny", [override])


def test_every_pattern_stands_once_and_none_hides_one_below_it():
    patterns = [m.pattern for m in metrics()]
    for i, pattern in enumerate(patterns):
        assert display_order(pattern.replace("*", "anything")) == i, pattern
    for name in ("completions/invented", "countdown_test/invented"):  # that nobody described
        assert display_order(name) == len(patterns)


NO_COMMIT_KNOWN = {
    "acereason_sft_math", "acereason_sft_code", "synthetic2_rl_math", "synthetic2_rl_code",
    "gpqa_diamond",
}  # fmt: skip
NO_LICENCE_STATED = {
    "skywork_math", "skywork_code", "aime24", "aime25", "math500", "intellect3_math",
    "intellect3_code",
}  # fmt: skip


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
