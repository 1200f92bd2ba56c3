"""Every argument we would give vLLM, taken by its own parsers."""

import json
import os
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from trl.generation import vllm_generation
from vllm_server import tiny_teacher

from klear.configs.loading import load_profile
from klear.configs.settings.training import RLSettings, TrainRuntime
from klear.training.engines.vllm_engine import engine_arguments
from klear.training.models import checkpoint_for_vllm, load_model
from klear.training.rl.config import vllm_arguments

vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """With the positions of the paper's model; the weights are not read."""
    folder = tiny_teacher(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    text = json.dumps(config | {"max_position_embeddings": 36_864})
    (folder / "config.json").write_text(text)
    return folder


def model_config(**arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(**arguments).create_model_config()


def test_the_server_of_the_readme_is_started_with_words_it_knows():
    from vllm.entrypoints.cli.serve import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    text = (ROOT / "training/README.md").read_text()
    commands = re.findall(r"vllm serve (FOLDER.*)", text)
    parser = make_arg_parser(FlexibleArgumentParser())
    for command in commands:
        arguments = parser.parse_args(shlex.split(command))
        validate_parsed_serve_args(arguments)
        assert arguments.logprobs_mode == "processed_logprobs"
        assert arguments.weight_transfer_config.backend == "nccl"
    assert len(commands) == 1


def test_the_engines_of_the_shipped_profiles_are_asked_in_words_they_know(checkpoint):
    own = {"kind": "vllm", "model": str(checkpoint), "revision": "main"}
    words = []
    for profile, stage in product(("single_gpu", "paper"), ("distill", "rate", "sample")):
        engine = getattr(load_profile(profile), stage).engine
        arguments = engine_arguments(engine.model_copy(update=own), None)
        words += [arguments] if arguments not in words else []
    for arguments in words:
        assert model_config(**arguments).max_model_len == 36_864


@pytest.mark.parametrize(
    ("profile", "changes", "types"),
    [
        ("paper", {}, (torch.bfloat16, torch.bfloat16)),
        ("single_gpu", {"fp32_head": True}, (torch.bfloat16, torch.float32)),
        ("paper", {"runtime": TrainRuntime(precision="fp16")}, (torch.float16, torch.float16)),
    ],
    ids=["bf16", "fp32_head", "fp16"],
)
def test_the_engine_beside_the_trainer_gets_length_share_and_types(
    checkpoint, tmp_path, monkeypatch, profile, changes, types
):
    """The config.json of the folder it is started from is the one way to tell it the types."""
    settings: RLSettings = load_profile(profile).rl_math.model_copy(update=changes)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        ours = {n.removeprefix("vllm_"): v for n, v in vllm_arguments(settings).items()}
    constructed: list[dict[str, Any]] = []

    class Recorder:
        def __init__(self, **arguments: Any) -> None:
            constructed.append(arguments)

        def sleep(self, level: int) -> None:
            assert level == 2

    monkeypatch.setattr(vllm_generation, "LLM", Recorder)
    folder = checkpoint_for_vllm(checkpoint, tmp_path / "start", settings)
    model = load_model(checkpoint, dtype="float32")
    model.name_or_path = str(folder)
    names = ("mode", "gpu_memory_utilization", "tensor_parallel_size", "enable_sleep_mode")
    by_trl = {name: ours[name] for name in names}
    with mock.patch.dict(os.environ):  # TRL tells vLLM its rank there
        vllm_generation.VLLMGeneration(
            model=model, accelerator=Accelerator(cpu=True), processing_class=None,
            max_model_length=ours["max_model_length"], **by_trl,
        )  # fmt: skip
    (arguments,) = constructed
    assert arguments.pop("enable_sleep_mode")  # which vLLM refuses without CUDA
    config = model_config(**arguments)
    assert config.max_model_len == settings.max_prompt_tokens + settings.max_tokens
    assert arguments["gpu_memory_utilization"] == settings.engine_runtime.gpu_memory_utilization
    assert (config.dtype, config.head_dtype) == types
