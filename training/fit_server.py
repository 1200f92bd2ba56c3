"""Where the vLLM server of an RL stage has its GPUs, and what keeps it from having any."""

from configs.placing import placed, server_gpus
from configs.topology import Topology
from configs.training_stages import RLSettings


def server_place(s: RLSettings, t: Topology) -> tuple[list[str], list[str]]:
    """(the arithmetic, what is wrong with it) of `engine=vllm_server` on GPUs that are named."""
    world, own = t.rl_gpus or t.gpus, server_gpus(s)
    if not own:
        none_left = (
            f"engine=vllm_server needs GPUs of its own, and RL trains on all {t.gpus}: set "
            "topology.rl_gpus to fewer"
        )
        return [], [none_left] if world == t.gpus else []
    try:
        launch = placed(s, t).runtime.launch
    except ValueError:  # said of the launch already
        return [], []
    assert launch is not None
    if launch.server is None or not launch.server.apart:
        both = f"{launch.processes} + {own} of the {t.gpus_per_node} GPUs of the first node"
        return [f"trainers and the stage's vLLM server: {both}{_idle(t, world + own)}"], []
    if launch.nodes < t.nodes:
        place = f"the stage's vLLM server: {own} of the {t.gpus_per_node} GPUs of a node behind"
        return [f"{place} the {launch.nodes} that train{_idle(t, world + own)}"], []
    return [], [
        f"engine=vllm_server needs GPUs of its own: {own} beside the {launch.processes} that "
        f"train on a node of {t.gpus_per_node}, or a node; RL trains on {world} of {t.gpus} GPUs: "
        "set topology.rl_gpus to fewer, or take engine=vllm_colocate"
    ]


def _idle(t: Topology, used: int) -> str:
    return f"; {t.gpus - used} of {t.gpus} GPUs idle in RL" if used < t.gpus else ""
