"""Can the stages of a profile run on the machines of its topology: do the numbers divide, does the
memory suffice? With the arithmetic, before anything is launched."""

from collections.abc import Iterator
from dataclasses import dataclass

from configs.settings.engines import EngineRuntime
from configs.settings.launching import launch_of
from configs.settings.pipeline import Pipeline
from configs.settings.placing import server_gpus
from configs.settings.topology import Topology
from configs.settings.training import RLSettings, SFTSettings
from configs.stage_names import STAGES
from training.packing import rl_schedule
from training.sizing import memory
from training.sizing.memory import GIB, Memory, gib
from training.sizing.model_facts import ModelFacts, facts_of_base, facts_of_model

SAMPLERS = ("distill", "rate", "sample", "agreement")


class DoesNotFit(ValueError):
    """The topology cannot run the profile; one line a problem, each with what to change."""


@dataclass(frozen=True)
class Fit:
    """One stage on its GPUs: the arithmetic, and what is wrong with it."""

    stage: str
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()


def check(p: Pipeline) -> list[Fit]:
    """Every stage of `p` that uses GPUs; nothing when the topology names none."""
    if not p.topology.gpus:
        return []
    return [fit for fit in _fits(p) if fit.stage not in p.stages_left_out]


def refuse(p: Pipeline, until: str = "") -> None:
    """Raise DoesNotFit when a stage up to `until` (empty: all) cannot run on the topology."""

    def place(stage: str) -> int:
        return STAGES.index("evaluate_base" if stage == "evaluate" else stage)

    fits = [f for f in check(p) if not until or place(f.stage) <= place(until)]
    problems = [f"{fit.stage}: {problem}" for fit in fits for problem in fit.problems]
    if problems:
        raise DoesNotFit("\n".join(problems))


def _fits(p: Pipeline) -> Iterator[Fit]:
    unchecked = "the sizes of {} are not known here: its memory is not checked"
    for stage in SAMPLERS:
        s = getattr(p, stage)
        if s is not None and s.engine.kind == "vllm":
            facts, longest = facts_of_model(s.engine.model), s.sampling.max_tokens
            if facts is None:
                yield Fit(stage, (unchecked.format(s.engine.model),))
            else:
                name = f"{stage}.engine.runtime"
                lines, problems = _engine(name, facts, s.engine.runtime, longest, p.topology)
                yield Fit(stage, (*lines,), (*problems,))
    facts = facts_of_base(p.base)
    if facts is None:
        yield Fit("base", (unchecked.format(p.base.model),))
        return
    yield _sft(facts, p.sft, p.topology)
    yield _rl("rl_math", facts, p.rl_math, p.topology)
    yield _rl("rl_code", facts, p.rl_code, p.topology)
    if p.evaluate.engine == "vllm":
        longest, runtime = p.evaluate.sampling.max_tokens, p.evaluate.engine_runtime
        lines, problems = _engine("evaluate.engine_runtime", facts, runtime, longest, p.topology)
        yield Fit("evaluate", (*lines,), (*problems,))


def _sft(facts: ModelFacts, s: SFTSettings, t: Topology) -> Fit:
    world = t.gpus
    cells = max(1, round(s.batch_tokens / s.max_length))
    row = f"{s.batch_tokens:,} tokens a step = {cells} × {s.max_length:,} over {world} GPUs"
    lines, problems = [f"{row} = {cells / world:g} rows of {s.max_length:,} each"], []
    if cells % world:
        near = [n * world * s.max_length for n in (cells // world, cells // world + 1) if n]
        problems.append(
            f"{cells} rows a step are no multiple of {world} GPUs, so some would wait: set "
            f"sft.batch_tokens={' or '.join(map(str, near))}, or name fewer GPUs"
        )
    if s.optimizer == "muon" and t.sharding != "none" and world > 1:
        problems.append("optimizer=muon needs whole matrices: set topology.sharding=none, or adamw")
    line, wrong = _training("sft", facts, s, t, world, s.max_length, s.batch_tokens / world)
    return Fit("sft", (*lines, line), (*problems, *wrong))


def _rl(stage: str, facts: ModelFacts, s: RLSettings, t: Topology) -> Fit:
    world = t.rl_gpus or t.gpus
    lines, problems = [], []
    try:
        units = rl_schedule(s, world)
        lines.append(
            f"{s.mini_batch_prompts} prompts × {s.rollouts_per_prompt} / {world} GPUs = "
            f"{units.per_device_train_batch_size // s.oversampling} answers an update each, "
            f"{units.steps_per_generation} updates a step"
        )
    except ValueError as error:
        most = max(n for n in range(1, t.gpus + 1) if s.mini_batch_prompts % n == 0)
        shared = f"{s.mini_batch_prompts} prompts a mini-batch cannot be shared by {world} GPUs"
        indivisible = s.mini_batch_prompts % world != 0
        problems.append(f"{shared}: set topology.rl_gpus={most}" if indivisible else str(error))
    try:
        launch_of(t, "rl")
    except ValueError as error:
        problems.append(str(error))
    longest = s.max_prompt_tokens + s.max_tokens
    at_once = s.mini_batch_prompts * s.rollouts_per_prompt / world * longest
    line, wrong = _training(stage, facts, s, t, world, longest, at_once)
    more, also = _generating(stage, facts, s, t, world, longest)
    return Fit(stage, (*lines, line, *more), (*problems, *wrong, *also))


def _training(
    stage: str,
    facts: ModelFacts,
    s: SFTSettings | RLSettings,
    t: Topology,
    world: int,
    longest: int,
    tokens_a_step: float,
) -> tuple[str, list[str]]:
    """The sum of what training keeps on a GPU while a micro-batch is trained on.

    With LoRA the frozen weights are bf16 and whole on each GPU; the adapters are not counted.
    """
    lora, r = s.lora is not None, s.runtime
    tokens = max(r.micro_batch_tokens, longest)
    shards = t.sharding != "none" and world > 1 and not lora
    if lora:
        parts = {"frozen weights": memory.BF16 * facts.parameters}
    else:
        parts = _state(facts, t, world, s.optimizer if isinstance(s, SFTSettings) else "adamw")
        autocast = memory.BF16 * facts.parameters  # copies of all weights where they are whole
        parts["bf16 copies"] = memory.gathered_bytes(facts) if shards else autocast
    parts |= memory.activation_bytes(
        facts,
        tokens,
        checkpointing=r.gradient_checkpointing,
        residual_bytes=memory.BF16 if shards or lora else memory.FP32,
    )
    parts["CUDA"] = memory.CUDA_CONTEXT
    if shards and tokens_a_step > tokens:
        parts["unreduced gradients"] = memory.whole_bytes(facts)
    if isinstance(s, RLSettings) and s.engine == "vllm_colocate":
        parts["vLLM asleep"] = memory.VLLM_ASLEEP
    need, problems = Memory(parts, _limit(t)), []
    if lora and world > 1 and t.sharding != "none":
        problems.append("lora trains under DDP: set topology.sharding=none, or lora to null")
    if not need.fits:
        cures = {
            f"{stage}.runtime.gradient_checkpointing=true": not r.gradient_checkpointing,
            f"{stage}.runtime.micro_batch_tokens={longest}": r.micro_batch_tokens > longest,
            "topology.sharding=full": t.sharding == "none" and t.gpus > 1,
        }
        names = " and ".join(name for name, helps in cures.items() if helps)
        cure = f": set {names}" if names else "; name more or larger GPUs"
        problems.append(f"does not fit: {need}{cure}")
    return f"training, {tokens:,} tokens at once: {need}", problems


def _generating(
    stage: str, facts: ModelFacts, s: RLSettings, t: Topology, world: int, longest: int
) -> tuple[list[str], list[str]]:
    """What generates the rollouts, beside the trainer or on GPUs of its own."""
    name, runtime, limit = f"{stage}.engine_runtime", s.engine_runtime, _limit(t)
    state = sum(_state(facts, t, world).values())
    if s.engine == "transformers":
        if t.sharding == "none" or world == 1 or s.lora is not None:
            return [], []
        copy = {"training state": state, "whole weights": memory.whole_bytes(facts)}
        both = Memory({**copy, "CUDA": memory.CUDA_CONTEXT}, limit)
        wrong = [] if both.fits else [f"no room for whole weights: {both}"]
        line = f"generating beside the shards, without keys and values: {both}"
        return [line], [f"{w}; take engine=vllm_colocate" for w in wrong]
    lines, problems = _server(s, t) if s.engine == "vllm_server" else ([], [])
    if s.engine == "vllm_colocate":
        if world % runtime.tensor_parallel:
            problems.append(
                f"{world} training GPUs are no multiple of {name}.tensor_parallel="
                f"{runtime.tensor_parallel}, which share one vLLM"
            )
        synced = memory.FP32 * facts.vocabulary * facts.hidden
        share = int(limit * runtime.gpu_memory_utilization)
        beside = {"training state": state, "weights in transfer": synced, "vLLM": share}
        both = Memory({**beside, "CUDA": memory.CUDA_CONTEXT}, limit)
        lines.append(f"generating beside the trainer: {both}")
        if not both.fits:
            most = int((limit - state - synced - memory.CUDA_CONTEXT) / limit * 20) / 20
            lower = f"set {name}.gpu_memory_utilization={most:g} or less"
            cure = lower if most > 0 else "train on more GPUs, or take engine=vllm_server"
            problems.append(f"trainer and vLLM do not fit on one GPU together: {both}; {cure}")
    more, also = _engine(name, facts, runtime, longest, t, exact=True)
    return lines + more, problems + also


def _server(s: RLSettings, t: Topology) -> tuple[list[str], list[str]]:
    """Where the vLLM server stands that the stage starts: beside the trainers, or a node behind."""
    world, own, node = t.rl_gpus or t.gpus, server_gpus(s), t.gpus_per_node
    if not own:  # it runs elsewhere
        return [], []
    training = -(-world // node)
    idle = f"; {t.gpus - world - own} of {t.gpus} GPUs idle in RL"
    if world + own <= node:
        both = f"{world} + {own} of the {node} GPUs of the first node"
        return [f"trainers and the stage's vLLM server: {both}{idle}"], []
    if training < t.nodes and own <= node:
        place = f"{own} of the {node} GPUs of a node behind the {training} that train"
        return [f"the stage's vLLM server: {place}{idle}"], []
    return [], [
        f"engine=vllm_server needs {own} GPUs of its own, beside the trainers on a node of {node} "
        f"or on a node behind them, and RL trains on {world} of {t.gpus} GPUs: set "
        "topology.rl_gpus to fewer, or take engine=vllm_colocate"
    ]


def _engine(
    name: str,
    facts: ModelFacts,
    r: EngineRuntime,
    max_tokens: int,
    t: Topology,
    *,
    exact: bool = False,
) -> tuple[list[str], list[str]]:
    """vLLM: does one answer of full length have room for its keys and values?"""
    problems = []
    tp, pp, copies = r.tensor_parallel, r.pipeline_parallel, r.data_parallel
    used = tp * pp * copies
    if used > t.gpus_per_node:
        problems.append(
            f"{name}: tensor × pipeline × data parallel = {tp} × {pp} × {copies} = {used} GPUs, "
            f"and a node has {t.gpus_per_node}"
        )
    if facts.heads % tp:
        good = max(n for n in range(1, tp) if facts.heads % n == 0)
        problems.append(
            f"{name}: {facts.heads} attention heads are no multiple of tensor_parallel={tp}; "
            f"{good} would divide"
        )
    context = max_tokens if exact else r.max_model_len or max_tokens + 4_096
    room = memory.kv_room(facts, _limit(t), r.gpu_memory_utilization, tp, pp)
    token = facts.kv_bytes_per_token(memory.BF16, tp)
    fitting = max(0, room) // max(1, token * context // pp)
    weights = gib(memory.BF16 * facts.parameters // (tp * pp))
    line = (
        f"vLLM: {r.gpu_memory_utilization:g} × {gib(_limit(t))} - weights {weights} - workspace "
        f"{gib(memory.VLLM_WORKSPACE)} = {gib(room)} GiB for keys and values; {token // pp:,} B × "
        f"{context:,} tokens = {gib(token // pp * context)} GiB an answer: {fitting} such answers "
        "at once"
    )
    if not exact and used < t.gpus_per_node:
        line += f"; {used} of the {t.gpus_per_node} GPUs of a node ({name}.data_parallel)"
    if not fitting:
        problems.append(
            f"no answer fits ({line}): raise {name}.tensor_parallel or gpu_memory_utilization, "
            "or ask for shorter answers"
        )
    return [line], problems


def _state(
    facts: ModelFacts, t: Topology, world: int, optimizer: memory.Optimizer = "adamw"
) -> dict[str, int]:
    """Bytes by name that stay from step to step when all weights are trained."""
    if world == 1:
        return memory.state_bytes(facts, 1, optimizer)
    if t.sharding == "none":
        whole = memory.state_bytes(facts, 1, optimizer)
        return {**whole, "DDP buckets": memory.whole_bytes(facts)}
    return memory.state_bytes(facts, world, optimizer)


def _limit(t: Topology) -> int:
    """Bytes of one GPU."""
    return int(t.card.memory_gib * GIB)
