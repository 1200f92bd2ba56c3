"""The topology says how and not what, and refuses machines that it cannot count on."""

import pytest
from pydantic import ValidationError

from configs.base import key_of
from configs.explain import ConfigError
from configs.load import load_profile
from configs.topology import GPUS, Topology


def test_no_key_depends_on_the_machines():
    here = load_profile("paper")
    there = load_profile("paper", ["topology.nodes=2", "topology.assume.train_mfu=0.3"])

    assert here.topology != there.topology
    assert key_of(here) == key_of(there)


def test_a_known_card_brings_its_memory_and_speed_and_may_be_corrected():
    assert Topology(gpus_per_node=8, gpu="H100").card == GPUS["H100"]
    assert Topology(gpus_per_node=8, gpu="H100", gpu_tflops=700).card.tflops == 700
    own = Topology(gpus_per_node=1, gpu="Other 9", gpu_memory_gib=12, gpu_tflops=50)
    assert own.card == (12, 50)


def test_a_misspelt_card_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean H100"):
        load_profile("paper", ["topology.gpu=H10"])


def test_rl_cannot_train_on_more_gpus_than_there_are():
    with pytest.raises(ValidationError, match=r"rl_gpus=9 .* 1 × 8 = 8"):
        Topology(gpus_per_node=8, gpu="H100", rl_gpus=9)


def test_without_gpus_nothing_is_named():
    assert Topology().gpus == 0
    assert str(Topology()) == "this machine (no GPUs named)"
    assert str(Topology(nodes=4, gpus_per_node=8, gpu="H100")).startswith("4 × 8 = 32 H100 (79 GiB")
