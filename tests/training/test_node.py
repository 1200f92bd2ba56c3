"""The configurations that accelerate is launched with, as accelerate itself reads them."""

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from training.launch import node

PLACE = ["--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "10.0.0.1"]
PLACE += ["--main_process_port", "29511", "--num_processes", "16"]


def validated(sharding: str):
    given = ["--config_file", str(node.CONFIGS / node.FILES[sharding]), *PLACE]
    parsed = launch_command_parser().parse_args(
        [*given, "--module", "training.launch.child", "job.json"]
    )
    return _validate_launch_command(parsed)[0]


@pytest.mark.parametrize("sharding", ["full", "none"])
def test_torchrun_is_told_the_machines_and_processes(sharding):
    arguments = validated(sharding)
    assert arguments.use_fsdp == (sharding == "full")
    assert arguments.multi_gpu == (sharding == "none")
    prepare_multi_gpu_env(arguments)
    names = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint")
    assert [str(getattr(arguments, name)) for name in names] == ["2", "8", "1", "10.0.0.1:29511"]
    assert arguments.rdzv_backend == "static"


def test_full_sharding_is_fsdp2_with_checkpoints_in_shards():
    environment = prepare_multi_gpu_env(validated("full"))
    with patch_environment(**environment):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert "SHARDED" in str(plugin.state_dict_type)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"  # the stage's runtime.bf16 decides


def test_zero3_is_deepspeeds_and_gathers_the_weights_it_saves():
    arguments = validated("zero3")
    assert arguments.use_deepspeed
    arguments.deepspeed_fields_from_accelerate_config = ""
    _, environment = prepare_deepspeed_cmd_env(arguments)
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] == "true"


@pytest.mark.parametrize(
    ("sharding", "refusal"), [("full", "does not see"), ("zero3", "DeepSpeed")]
)
def test_what_cannot_start_is_refused_before_anything_does(
    tmp_path, monkeypatch, capsys, sharding, refusal
):
    monkeypatch.setattr(node.importlib.util, "find_spec", lambda _: None)
    if sharding == "zero3":
        (tmp_path / "job.json").touch()
    arguments = [str(tmp_path / "job.json"), "--processes", "2", "--at", "10.0.0.1:29511"]
    with pytest.raises(SystemExit) as ended:
        node.main([*arguments, "--sharding", sharding])
    assert ended.value.code == 2
    assert refusal in capsys.readouterr().err
