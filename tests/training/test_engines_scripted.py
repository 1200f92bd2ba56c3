"""The scripted engine and what all engines share: requests, seeds, the factory."""

import random
import subprocess
import sys

import pytest

from configs.engines import EngineSettings, Sampling
from eval.families import by_example, countdown
from training.engines.interface import EngineError, Request, request_seed
from training.engines.make import is_local, make_engine

SETTINGS = EngineSettings(kind="scripted", model="teacher")


def requests(size: int = 20) -> list[Request]:
    problems = [
        p for f in (countdown, by_example) for p in f.generate(random.Random(0), size, "train")
    ]
    return [
        Request(problem_id=p.id, index=i, prompt=p.prompt, seed=request_seed(0, p.id, i))
        for p in problems
        for i in range(2)
    ]


def test_every_request_is_answered_once_by_its_own_seed():
    with make_engine(SETTINGS, Sampling()) as engine:
        asked = requests()
        forwards = {(s.problem_id, s.index): s for s in engine.answer(asked)}
        backwards = {(s.problem_id, s.index): s for s in engine.answer(asked[::-1])}
    assert forwards == backwards
    assert set(forwards) == {(r.problem_id, r.index) for r in asked}
    assert {s.model for s in forwards.values()} == {"teacher"}


def test_samples_of_one_problem_differ():
    with make_engine(SETTINGS, Sampling()) as engine:
        texts = [s.text for s in engine.answer(requests(50))]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    assert sum(a != b for a, b in pairs) > len(pairs) / 2


def test_a_prompt_of_no_family_is_an_error_with_the_cure():
    with (
        make_engine(SETTINGS, Sampling()) as engine,
        pytest.raises(EngineError, match="use another engine"),
    ):
        list(engine.answer([Request(problem_id="x", index=0, prompt="What is love?")]))


def test_seeds_differ_by_run_problem_and_index_and_fit_31_bits():
    seeds = {request_seed(s, p, i) for s in range(5) for p in ("a", "b", "a/1") for i in range(9)}
    assert len(seeds) == 5 * 3 * 9
    assert max(seeds) < 2**31


def test_only_models_of_our_own_belong_into_a_child_process():
    kinds = {"vllm", "transformers", "scripted"}
    assert {k for k in kinds if is_local(EngineSettings(kind=k, model="m"))} == kinds - {"scripted"}


def test_the_interface_and_the_factory_import_no_torch():
    code = (
        "import sys, training.engines.make, training.engines.local, training.engines.recorded\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_teacher_slips_more_on_a_source_that_says_so():
    """A slip in every line against none: the same question, asked under two names of a source."""
    settings = EngineSettings(
        kind="scripted", error_rate=0.0, source_error_rates={"bad": 1.0}, brief_rate=0.0
    )
    prompt = next(iter(countdown.generate(random.Random(0), 1, "train"))).prompt

    def texts(part: str) -> list[str]:
        asked = [
            Request(problem_id="p", index=i, prompt=prompt, seed=i, part=part) for i in range(20)
        ]
        with make_engine(settings, Sampling()) as engine:
            return [s.text for s in engine.answer(asked)]

    assert texts("good") == texts("") != texts("bad")
