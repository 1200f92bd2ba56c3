"""Can the stages of a profile run on the machines of its topology: do the numbers divide, does the
memory suffice? With the arithmetic, before anything is launched."""

from collections.abc import Iterator
from dataclasses import dataclass

from configs.engines import EngineRuntime, EngineSettings
from configs.launching import launch_of
from configs.settings import Pipeline
from configs.stage_names import STAGES
from configs.topology import Topology
from configs.training_stages import RLSettings, SFTSettings, TrainRuntime
from training import memory
from training.fit_server import server_place
from training.fit_training import limit_of, sharded, state_parts, training_parts, waits
from training.memory import GIB, Memory, gib
from training.model_facts import ModelFacts, facts_of_base, facts_of_model
from training.schedule import rl_schedule

SAMPLERS = ("distill", "rate", "sample", "agreement")
SLEEPING = int(1.0 * GIB)
"""What a sleeping vLLM keeps beside a colocated trainer (an allowance)."""


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
    left_out = p.stages_left_out
    facts = facts_of_base(p.base)
    found = list(_samplers(p, left_out))
    if facts is None:
        unknown = f"the sizes of {p.base.model} are not known here: its memory is not checked"
        return [*found, Fit("base", (unknown,))]
    if "sft" not in left_out:
        found.append(_sft(facts, p.sft, p.topology))
    for stage, settings in (("rl_math", p.rl_math), ("rl_code", p.rl_code)):
        if stage not in left_out:
            found.append(_rl(stage, facts, settings, p.topology))
    if p.evaluate.engine == "vllm":
        longest = p.evaluate.sampling.max_tokens
        name = "evaluate.engine_runtime"
        found.append(_engine(name, facts, p.evaluate.engine_runtime, longest, p.topology))
    return found


def refuse(p: Pipeline, until: str = "") -> None:
    """Raise DoesNotFit when a stage up to `until` (empty: all) cannot run on the topology."""
    fits = [f for f in check(p) if not until or _place(f.stage) <= _place(until)]
    problems = [f"{fit.stage}: {problem}" for fit in fits for problem in fit.problems]
    if problems:
        raise DoesNotFit("\n".join(problems))


def _place(stage: str) -> int:
    return STAGES.index("evaluate_base" if stage == "evaluate" else stage)


def _samplers(p: Pipeline, left_out: set[str]) -> Iterator[Fit]:
    for stage in SAMPLERS:
        settings = getattr(p, stage)
        if settings is None or stage in left_out or settings.engine.kind != "vllm":
            continue
        engine: EngineSettings = settings.engine
        facts = facts_of_model(engine.model)
        if facts is None:
            line = f"the sizes of {engine.model} are not known here: its memory is not checked"
            yield Fit(stage, (line,))
        else:
            longest = settings.sampling.max_tokens
            yield _engine(f"{stage}.engine.runtime", facts, engine.runtime, longest, p.topology)


def _sft(facts: ModelFacts, s: SFTSettings, t: Topology) -> Fit:
    world, limit = t.gpus, limit_of(t)
    cells = max(1, round(s.batch_tokens / s.max_length))
    lines = [
        f"{s.batch_tokens:,} tokens a step = {cells} × {s.max_length:,} over {world} GPUs = "
        f"{cells / world:g} rows of {s.max_length:,} each"
    ]
    problems = []
    if cells % world:
        near = [n * world * s.max_length for n in (cells // world, cells // world + 1) if n]
        problems.append(
            f"{cells} rows a step are no multiple of {world} GPUs, so some would wait: set "
            f"sft.batch_tokens={' or '.join(map(str, near))}, or name fewer GPUs"
        )
    tokens = max(s.runtime.micro_batch_tokens, s.max_length)
    parts = training_parts(facts, s.runtime, t, world, tokens, s.optimizer, lora=s.lora is not None)
    if waits(t, world, lora=s.lora is not None) and s.batch_tokens / world > tokens:
        parts["unreduced gradients"] = memory.unreduced_bytes(facts)
    if s.optimizer == "muon" and t.sharding != "none" and world > 1:
        problems.append("optimizer=muon needs whole matrices: set topology.sharding=none, or adamw")
    problems += _not_spread(s.lora is not None, t, world)
    need = Memory(parts, limit)
    lines.append(f"training, {tokens:,} tokens at once: {need}")
    if not need.fits:
        problems.append(_too_big("sft", need, s.runtime, s.max_length, t))
    return Fit("sft", tuple(lines), tuple(problems))


def _rl(stage: str, facts: ModelFacts, s: RLSettings, t: Topology) -> Fit:
    world, limit = t.rl_gpus or t.gpus, limit_of(t)
    lines, problems = [], []
    try:
        units = rl_schedule(s, world)
        lines.append(
            f"{s.mini_batch_prompts} prompts × {s.rollouts_per_prompt} / {world} GPUs = "
            f"{units.per_device_train_batch_size // s.oversampling} answers an update each, "
            f"{units.updates_per_rollout} updates a step"
        )
    except ValueError as error:
        most = max(n for n in range(1, t.gpus + 1) if s.mini_batch_prompts % n == 0)
        shared = f"{s.mini_batch_prompts} prompts a mini-batch cannot be shared by {world} GPUs"
        indivisible = s.mini_batch_prompts % world != 0
        problems.append(f"{shared}: set topology.rl_gpus={most}" if indivisible else str(error))
    problems += [*_not_launched(t), *_not_spread(s.lora is not None, t, world)]
    longest = s.max_prompt_tokens + s.max_tokens
    tokens = max(s.runtime.micro_batch_tokens, longest)
    parts = training_parts(facts, s.runtime, t, world, tokens, "adamw", lora=s.lora is not None)
    answers = s.mini_batch_prompts * s.rollouts_per_prompt / world
    if waits(t, world, lora=s.lora is not None) and answers * longest > tokens:
        parts["unreduced gradients"] = memory.unreduced_bytes(facts)
    if s.engine == "vllm_colocate":
        parts["vLLM asleep"] = SLEEPING
    need = Memory(parts, limit)
    lines.append(f"training, {tokens:,} tokens at once: {need}")
    if not need.fits:
        problems.append(_too_big(stage, need, s.runtime, longest, t))
    if s.engine == "transformers":
        if sharded(t, world, lora=s.lora is not None):
            resident = sum(state_parts(facts, t, world).values())
            copy = {"training state": resident, "whole weights": memory.FP32 * facts.parameters}
            both = Memory({**copy, "CUDA": memory.CUDA_CONTEXT}, limit)
            lines.append(f"generating beside the shards, without keys and values: {both}")
            if not both.fits:
                problems.append(f"no room for whole weights: {both}; take engine=vllm_colocate")
        return Fit(stage, tuple(lines), tuple(problems))
    name, runtime = f"{stage}.engine_runtime", s.engine_runtime
    if s.engine == "vllm_server":
        place, refusal = server_place(s, t)
        lines += place
        problems += refusal
    if s.engine == "vllm_colocate" and world % runtime.tensor_parallel:
        problems.append(
            f"{world} training GPUs are no multiple of {name}.tensor_parallel="
            f"{runtime.tensor_parallel}, which share one vLLM"
        )
    if s.engine == "vllm_colocate":
        resident = sum(state_parts(facts, t, world).values())
        synced = memory.FP32 * facts.vocabulary * facts.hidden
        share = int(limit * runtime.gpu_memory_utilization)
        beside = {"training state": resident, "weights in transfer": synced, "vLLM": share}
        both = Memory({**beside, "CUDA": memory.CUDA_CONTEXT}, limit)
        lines.append(f"generating beside the trainer: {both}")
        if not both.fits:
            most = (limit - resident - synced - memory.CUDA_CONTEXT) / limit
            cure = (
                f"set {name}.gpu_memory_utilization={int(most * 20) / 20:g} or less"
                if most >= 0.05
                else "train on more GPUs, or take engine=vllm_server"
            )
            problems.append(f"trainer and vLLM do not fit on one GPU together: {both}; {cure}")
    generating = _engine(name, facts, runtime, longest, t, exact=True)
    return Fit(stage, (*lines, *generating.lines), (*problems, *generating.problems))


def _not_launched(t: Topology) -> list[str]:
    """What keeps RL from starting on these machines, whatever its sizes."""
    problems = []
    try:
        launch_of(t, "rl")
    except ValueError as error:
        problems.append(str(error))
    if t.sharding == "zero3":
        problems.append(
            "topology.sharding=zero3 is for SFT: DeepSpeed steps inside `backward`, and an update "
            "of GPPO is several backward passes that may be skipped; set it to full"
        )
    return problems


def _not_spread(lora: bool, t: Topology, world: int) -> list[str]:
    """What keeps adapters from training on these machines."""
    if not lora or world == 1 or t.sharding == "none":
        return []
    return ["lora trains under DDP: set topology.sharding=none, or lora to null"]


def _engine(
    name: str,
    facts: ModelFacts,
    r: EngineRuntime,
    max_tokens: int,
    t: Topology,
    *,
    exact: bool = False,
) -> Fit:
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
        good = [n for n in range(1, tp) if facts.heads % n == 0]
        problems.append(
            f"{name}: {facts.heads} attention heads are no multiple of tensor_parallel={tp}; "
            f"{good[-1]} would divide"
        )
    context = max_tokens if exact else r.max_model_len or max_tokens + 4_096
    room = memory.kv_room(facts, limit_of(t), r.gpu_memory_utilization, tp, pp)
    each = facts.kv_bytes_per_token(memory.BF16, tp) // pp
    fitting = memory.answers_at_once(facts, room, context, tp, pp)
    weights = gib(memory.BF16 * facts.parameters // (tp * pp))
    line = (
        f"vLLM: {r.gpu_memory_utilization:g} × {gib(limit_of(t))} - weights {weights} - workspace "
        f"{gib(memory.VLLM_WORKSPACE)} = {gib(room)} GiB for keys and values; {each:,} B × "
        f"{context:,} tokens = {gib(each * context)} GiB an answer: {fitting} such answers at once"
    )
    if not exact and used < t.gpus_per_node:
        line += f"; {used} of the {t.gpus_per_node} GPUs of a node ({name}.data_parallel)"
    if not fitting:
        problems.append(
            f"no answer fits ({line}): raise {name}.tensor_parallel or gpu_memory_utilization, "
            "or ask for shorter answers"
        )
    return Fit(name.partition(".")[0], (line,), tuple(problems))


def _too_big(stage: str, need: Memory, r: TrainRuntime, longest: int, t: Topology) -> str:
    cures = []
    if not r.gradient_checkpointing:
        cures.append(f"{stage}.runtime.gradient_checkpointing=true")
    if r.micro_batch_tokens > longest:
        cures.append(f"{stage}.runtime.micro_batch_tokens={longest}")
    if t.sharding == "none" and t.gpus > 1:
        cures.append("topology.sharding=full")
    tail = f": set {' and '.join(cures)}" if cures else "; name more or larger GPUs"
    return f"does not fit: {need}{tail}"
