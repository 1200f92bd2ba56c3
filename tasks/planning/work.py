"""How much work a stage will be: from its settings, from its inputs where their counts are known,
from the nearest earlier result, and where all of these are silent from a named assumption."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.settings.evaluation import EvaluateSettings
from configs.settings.topology import Assumptions
from configs.settings.training import RLSettings
from tasks.planning.store_history import PastResult, StoreHistory
from tasks.store.store import Artifact
from training.sizing.model_facts import ModelFacts

KEPT = "kept/"
UNCOUNTED = "uncounted"
"""Among counts: sources whose rows were assumed, so that no `kept/SOURCE` tells of them."""
MODELS_KEPT = "models_kept"
ROWS = {"aime24": 30, "aime25": 30, "hmmt25": 30, "math500": 500, "livecodebench": 1055}
"""Rows of the benchmarks of the catalogue."""
PROBLEMS = {"aime24": 30, "aime25": 30, "hmmt25": 30, "lcb_v5": 374, "lcb_v6": 131}
"""Problems of the published benchmarks (eval/benchmarks/benchmarks.py)."""
BYTES_PER_TOKEN = 1.5
"""Of generated text on disk, as compressed parquet."""
BYTES_PER_ROW = 1_000.0
"""Of a problem on disk, as compressed parquet."""


@dataclass(frozen=True)
class Work:
    """`amount` units; tokens that are generated or trained on; and what the result will count."""

    amount: float
    unit: str
    tokens: float | None = None
    prompt_tokens: float = 0.0
    trained_tokens: float = 0.0
    bytes: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StageContext:
    """What is known about a stage before it runs. `past`: the nearest result of the same kind."""

    settings: Any
    inputs: tuple[Artifact, ...]
    past: PastResult | None
    earlier: StoreHistory
    facts: ModelFacts | None
    assumptions: Assumptions
    used: list[str] = field(default_factory=list)
    """Names of the assumptions that were used."""

    def assume(self, name: str) -> float:
        if name not in self.used:
            self.used.append(name)
        return float(getattr(self.assumptions, name))

    def count(self, place: int, name: str) -> float | None:
        """A count of an input, measured or expected."""
        return self.inputs[place].metrics.get(name) if place < len(self.inputs) else None

    def mean(self, total: str, of: str) -> float | None:
        """Quotient of two metrics of the nearest earlier result, where it has both."""
        metrics = self.past.metrics if self.past else {}
        return metrics[total] / metrics[of] if metrics.get(total) and metrics.get(of) else None

    def kept_share(self) -> float | None:
        """Of what the nearest earlier result read."""
        metrics = self.past.metrics if self.past else {}
        total = metrics.get("kept", 0.0) + metrics.get("rejected", 0.0)
        return metrics["kept"] / total if total else None

    def size(self, count: float, of: str, each: float = BYTES_PER_ROW) -> float:
        """Bytes of the result: as many for each of what metric `of` counts as before."""
        if self.past and self.past.metrics.get(of):
            each = self.past.bytes / self.past.metrics[of]
        return count * each

    def checkpoint(self) -> float | None:
        """bf16 weights: 2·N; an earlier checkpoint of the same model has exactly these bytes."""
        return self.past.bytes if self.past else 2.0 * self.facts.parameters if self.facts else None

    def of_sources(self, sources: tuple[str, ...]) -> float | None:
        """Prompts of the sources (empty: all) in the first input; None if one was only assumed."""
        given = self.inputs[0].metrics if self.inputs else {}
        names = [KEPT + n for n in sources] or [n for n in given if n.startswith(KEPT)]
        known = [given[n] for n in names if n in given]
        assumed = given.get(UNCOUNTED) and (not sources or len(known) < len(names))
        return None if assumed or not known else sum(known)


def collect(s: StageContext) -> Work:
    """Rows by source: counted by an earlier run, by `size` or `limit`, else assumed."""
    counts: dict[str, float] = {}
    rows = assumed = 0.0
    for source in s.settings.sources:
        mine = source.model_dump(mode="json", exclude={"rank"})
        known = next(
            (
                past.metrics.get(KEPT + source.name)
                for past in s.earlier.of("collect", "benchmarks")
                for theirs in past.tree.get("sources", ())
                if {k: v for k, v in theirs.items() if k != "rank"} == mine
            ),
            source.size if source.kind == "generated" else ROWS.get(source.use, source.limit),
        )
        if known is None:
            rows, assumed = rows + s.assume("source_rows"), assumed + 1
        else:
            rows, counts[KEPT + source.name] = rows + known, float(known)
    counts |= {UNCOUNTED: assumed, "kept": rows}
    return Work(rows, "rows", bytes=s.size(rows, "kept"), counts=counts)


def rows_kept(s: StageContext) -> Work:
    """Dedup and decontamination: the counts of the first input, less the share that goes."""
    rows = s.count(0, "kept") or 0.0
    share = s.kept_share() or s.assume("kept")
    given = s.inputs[0].metrics
    counts = {n: v * share for n, v in given.items() if n.startswith(KEPT)}
    counts |= {UNCOUNTED: given.get(UNCOUNTED, 0.0), "kept": rows * share}
    return Work(rows, "rows", bytes=s.size(rows, "kept"), counts=counts)


def filter_tests(s: StageContext) -> Work:
    """RL prompts to ask about: of counted sources, else what the paper kept before its filter."""
    asked = s.of_sources(s.settings.sources)
    if asked is None:
        published = s.assume("rl_math_prompts") + s.assume("rl_code_prompts")
        asked = published / s.assume("rl_kept")
    rows = s.count(0, "kept") or 0.0
    return Work(rows, "rows", bytes=s.size(asked, "kept"), counts={"kept": asked})


def filter_rl(s: StageContext) -> Work:
    rows = s.count(0, "kept") or 0.0
    kept = rows * (s.kept_share() or s.assume("rl_kept"))
    return Work(rows, "rows", bytes=s.size(kept, "kept"), counts={"kept": kept})


def distill(s: StageContext) -> Work:
    """Answers: prompts × samples, each of the mean length of an earlier run or of the assumed."""
    if s.inputs and s.inputs[0].stage == "filter_tests":
        prompts = s.count(0, "kept") or 0.0
    else:
        prompts = s.of_sources(s.settings.sources) or s.assume("sft_prompts")
    samples, each = prompts * s.settings.samples_per_prompt, s.mean("tokens", "samples")
    free = s.settings.engine.kind in ("scripted", "recorded")
    if each is None and not free:
        each = min(s.assume("answer_tokens"), float(s.settings.sampling.max_tokens))
    tokens = samples * (each or 0.0)
    counts = {"samples": samples, "prompts": prompts, "tokens": tokens}
    if free:
        size = s.size(samples, "samples", BYTES_PER_TOKEN)
        return Work(samples, "answers", tokens or None, bytes=size, counts=counts)
    asked = samples * (s.mean("prompt_tokens", "samples") or s.assumptions.prompt_tokens)
    size = s.size(tokens, "tokens", BYTES_PER_TOKEN)
    return Work(tokens, "tokens", tokens, asked, bytes=size, counts=counts)


def judge(s: StageContext) -> Work:
    answers = s.count(1, "samples") or 0.0
    return Work(answers, "answers", bytes=10 * answers)


def difficulty(s: StageContext) -> Work:
    rows = s.count(0, "kept") or 0.0
    return Work(rows, "rows", bytes=10 * rows)


def select(s: StageContext) -> Work:
    """Examples: every answer (§5.1.1), unless a size or an earlier share says otherwise."""
    answers, tokens = s.count(1, "samples") or 0.0, s.count(1, "tokens") or 0.0
    kept = float(s.settings.size or answers * (s.kept_share() or 1.0))
    each = tokens / answers if answers else 0.0
    size = s.size(kept if s.past else kept * each, "kept", BYTES_PER_TOKEN)
    return Work(answers, "answers", bytes=size, counts={"kept": kept, "answer_tokens": each})


def sft(s: StageContext) -> Work:
    """Token places: epochs × examples × places of an example."""
    answer = s.count(1, "answer_tokens") or s.assume("answer_tokens")
    each = min(answer + s.assume("prompt_tokens"), float(s.settings.max_length))
    places = s.settings.epochs * (s.count(1, "kept") or 0.0) * each
    return Work(places, "tokens", places, trained_tokens=places, bytes=s.checkpoint())


def rl(s: StageContext) -> Work:
    """Tokens of all answers: steps × prompts × rollouts; oversampling generates more than are
    trained on."""
    settings: RLSettings = s.settings
    trained = settings.steps * settings.prompts_per_step * settings.rollouts_per_prompt
    rollouts = trained * settings.oversampling
    answer = s.past.mean("completions/mean_length") if s.past else 0.0
    answer = answer or min(s.assume("answer_tokens"), float(settings.max_tokens))
    prompt = min(s.assumptions.prompt_tokens, settings.max_prompt_tokens)
    kept = float((settings.steps - 1) // settings.keep_every if settings.keep_every else 0)
    each, before = s.checkpoint(), s.past.metrics.get(MODELS_KEPT, 0.0) if s.past else 0.0
    return Work(
        rollouts * answer,
        "tokens",
        rollouts * answer,
        rollouts * prompt,
        trained * (prompt + answer),
        each and each * (1 + kept) / (1 + before),
        {"rollouts": float(rollouts), MODELS_KEPT: kept},
    )


def evaluate(s: StageContext) -> Work:
    """avg@k: k answers to every problem of every benchmark, and those of the learning curve."""
    settings: EvaluateSettings = s.settings

    def asked(protocols: EvaluateSettings) -> float:
        answers = 0.0
        for p in protocols.protocols:
            counted = None if p.date_from or p.date_to else s.count(1, KEPT + (p.source or p.name))
            counted = PROBLEMS.get(p.name) if counted is None else counted
            answers += p.k * (s.assume("benchmark_problems") if counted is None else counted)
        return answers

    answers = asked(settings)
    if along := settings.along_the_way():
        answers += (s.count(0, MODELS_KEPT) or 0.0) * asked(along)
    each = s.mean("completion_tokens", "answers")
    each = each or min(s.assume("answer_tokens"), float(settings.sampling.max_tokens))
    tokens = answers * each
    size = s.size(tokens, "completion_tokens", BYTES_PER_TOKEN)
    return Work(tokens, "tokens", tokens, bytes=size)


def once(s: StageContext) -> Work:
    """Stages whose size does not depend on what they get: the base model, the report."""
    return Work(1.0, "run", bytes=s.checkpoint())


def sum_of(*metrics: str) -> Callable[[PastResult], float]:
    return lambda past: sum(past.metrics.get(name, 0.0) for name in metrics)


ROWS_READ = sum_of("kept", "rejected", "easy", "hard", "unrated")


def _answers_given(past: PastResult) -> float:
    free = past.tree["engine"]["kind"] in ("scripted", "recorded")
    return past.metrics.get("samples" if free else "tokens", 0.0)


def _tokens_rolled_out(past: PastResult) -> float:
    s = past.tree
    a_step = s["prompts_per_step"] * s["rollouts_per_prompt"] * s["oversampling"]
    steps = past.metrics.get("rollout_steps", 0.0)
    return steps * past.mean("completions/mean_length") * a_step


@dataclass(frozen=True)
class Kind:
    """One kind of work, whichever stages do it."""

    work: Callable[[StageContext], Work]
    stages: tuple[str, ...] = ()
    """That are this kind, where they are not called by it."""
    alike: tuple[str, ...] = ()
    """Settings in which two results agree if the rate of one tells about the other."""
    done: Callable[[PastResult], float] = ROWS_READ
    """How much work an earlier result was, in the units of `work`."""
    on_a_core: float | None = None
    """Units a second, measured by tests/bench/bench_data_stages.py."""


KINDS = {
    "collect": Kind(collect, ("collect", "benchmarks"), ("sources.*.kind",), on_a_core=37_000),
    "dedup": Kind(rows_kept, alike=("near",), on_a_core=49_000),
    "decontaminate": Kind(rows_kept, on_a_core=50_000),
    "distill": Kind(
        distill,
        ("distill", "rate", "sample", "agreement"),
        ("engine.kind", "engine.model"),
        _answers_given,
        on_a_core=20_000,  # of a scripted or recorded engine
    ),
    "judge": Kind(
        judge,
        ("judge", "judge_rl", "judge_rate", "judge_agreement"),
        ("judge.sandbox", "judge.max_tests", "judge.stop_at_first_failure"),
        sum_of("scores"),
    ),
    "difficulty": Kind(difficulty, on_a_core=24_000),  # 4 answers to a problem
    "select": Kind(  # answers of 31,634 characters
        select, (), ("size",), sum_of("kept", "rejected"), on_a_core=3_000
    ),
    "filter_tests": Kind(filter_tests, on_a_core=87_000),
    "filter_rl": Kind(filter_rl, on_a_core=8_500),  # 16 answers to a problem
    "sft": Kind(
        sft,
        alike=("lora*",),
        done=lambda past: past.metrics.get("steps", 0.0) * past.tree["batch_tokens"],
    ),
    "rl": Kind(rl, ("rl_math", "rl_code"), ("lora*", "engine"), _tokens_rolled_out),
    "evaluate": Kind(
        evaluate,
        ("evaluate_rl_code", "evaluate_rl_math", "evaluate_sft", "evaluate_base"),
        ("engine", "sampling.max_tokens"),
        sum_of("completion_tokens"),
    ),
    "base": Kind(
        once,
        alike=("kind", "model", "layers", "hidden", "mlp", "heads", "kv_heads", "vocabulary"),
        done=lambda past: 1.0,
    ),
}
"""By the name of the stage's body."""
ONCE = Kind(once, done=lambda past: 1.0)
"""Any other body."""
