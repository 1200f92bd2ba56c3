"""A training stage's settings together with the machines it runs on."""

from typing import TypeVar

from configs.settings.launching import Launch, OwnServer, launch_of
from configs.settings.topology import Topology
from configs.settings.training import RLSettings, SFTSettings

Trained = TypeVar("Trained", SFTSettings, RLSettings)


def placed(settings: Trained, topology: Topology) -> Trained:
    """`settings` with the launch that the topology says, unless they bring one of their own.

    Raises ValueError where RL's GPUs are no whole nodes.
    """
    if settings.runtime.launch is not None:
        return settings
    launch = launch_of(topology, "rl" if isinstance(settings, RLSettings) else "sft")
    if gpus := server_gpus(settings):
        named = topology.gpus_per_node
        apart = bool(named) and launch.gpus + gpus > named
        server = OwnServer(gpus=gpus if named else 0, apart=apart)
        launch = launch.model_copy(update={"server": server})
    runtime = settings.runtime.model_copy(update={"launch": launch})
    return settings.model_copy(update={"runtime": runtime})


def launch_for(settings: SFTSettings | RLSettings) -> Launch:
    """The launch that the settings bring, else one process here; with a server if RL needs one."""
    launch = settings.runtime.launch or Launch()
    if launch.server is None and (gpus := server_gpus(settings)):
        return launch.model_copy(update={"server": OwnServer(gpus=gpus if launch.gpus else 0)})
    return launch


def server_gpus(settings: SFTSettings | RLSettings) -> int:
    """GPUs of the vLLM server that the stage has to start itself; 0 where it starts none."""
    if not isinstance(settings, RLSettings) or settings.engine != "vllm_server":
        return 0
    runtime = settings.engine_runtime
    mine = runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel
    return 0 if settings.runtime.vllm_server_url else mine
