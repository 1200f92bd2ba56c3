"""How much work a stage will be: from its settings, from its inputs where their counts are known,
from the nearest earlier result, and where all of these are silent from a named assumption."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.settings.assumptions import Assumptions
from configs.settings.evaluation import EvaluateSettings
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
"""Problems of the published benchmarks (eval/benchmarks/benchmarks.py); none is in two of these
names."""


class AssumptionLog:
    """Assumptions by name, and the names of those that were used."""

    def __init__(self, values: Assumptions) -> None:
        self.values = values
        self.names: list[str] = []

    def __call__(self, name: str) -> float:
        if name not in self.names:
            self.names.append(name)
        return float(getattr(self.values, name))


@dataclass(frozen=True)
class StageContext:
    """What is known about a stage before it runs. `past`: the nearest result of the same kind."""

    stage: str
    settings: Any
    inputs: tuple[Artifact, ...]
    past: PastResult | None
    earlier: StoreHistory
    facts: ModelFacts | None
    assume: AssumptionLog

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

    def size(self, count: float, of: str, assumption: str) -> float:
        """Bytes of the result: as many for each of what metric `of` counts as before."""
        if self.past and self.past.metrics.get(of):
            return count * self.past.bytes / self.past.metrics[of]
        return count * self.assume(assumption)

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
    size = s.size(rows, "kept", "bytes_per_row")
    return Work(rows, "rows", bytes=size, counts={**counts, UNCOUNTED: assumed, "kept": rows})


def rows_kept(s: StageContext) -> Work:
    """Dedup and decontamination: the counts of the first input, less the share that goes."""
    rows = s.count(0, "kept") or 0.0
    share = s.kept_share() or s.assume("kept")
    given = s.inputs[0].metrics
    counts = {n: v * share for n, v in given.items() if n.startswith(KEPT)}
    counts |= {UNCOUNTED: given.get(UNCOUNTED, 0.0), "kept": rows * share}
    return Work(rows, "rows", bytes=s.size(rows, "kept", "bytes_per_row"), counts=counts)


def filter_tests(s: StageContext) -> Work:
    """RL prompts to ask about: of counted sources, else what the paper kept before its filter."""
    asked = s.of_sources(s.settings.sources)
    if asked is None:
        published = s.assume("rl_math_prompts") + s.assume("rl_code_prompts")
        asked = published / s.assume("rl_kept")
    size = s.size(asked, "kept", "bytes_per_row")
    return Work(s.count(0, "kept") or 0.0, "rows", bytes=size, counts={"kept": asked})


def filter_rl(s: StageContext) -> Work:
    rows = s.count(0, "kept") or 0.0
    kept = rows * (s.kept_share() or s.assume("rl_kept"))
    return Work(rows, "rows", bytes=s.size(kept, "kept", "bytes_per_row"), counts={"kept": kept})


def distill(s: StageContext) -> Work:
    """Answers: prompts × samples, each of the mean length of an earlier run or of the assumed."""
    if s.inputs and s.inputs[0].stage == "filter_tests":
        prompts = s.count(0, "kept") or 0.0
    else:
        prompts = s.of_sources(s.settings.sources) or s.assume("sft_prompts")
    samples, each = prompts * s.settings.samples_per_prompt, s.mean("tokens", "samples")
    scripted = s.settings.engine.kind in ("scripted", "recorded")
    if each is None and not scripted:
        each = min(s.assume("answer_tokens"), float(s.settings.sampling.max_tokens))
    tokens = samples * (each or 0.0)
    asked = samples * (s.mean("prompt_tokens", "samples") or s.assume.values.prompt_tokens)
    counts = {"samples": samples, "prompts": prompts, "tokens": tokens}
    if scripted:
        size = s.size(samples, "samples", "bytes_per_token")
        return Work(samples, "answers", tokens or None, bytes=size, counts=counts)
    size = s.size(tokens, "tokens", "bytes_per_token")
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
    size = s.size(kept if s.past else kept * each, "kept", "bytes_per_token")
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
    prompt = min(s.assume.values.prompt_tokens, settings.max_prompt_tokens)
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
    size = s.size(tokens, "completion_tokens", "bytes_per_token")
    return Work(tokens, "tokens", tokens, bytes=size)


def once(s: StageContext) -> Work:
    """Stages whose size does not depend on what they get: the base model, the report."""
    return Work(1.0, "run", bytes=s.checkpoint())


WORK: dict[str, Callable[[StageContext], Work]] = {
    "collect": collect,
    "dedup": rows_kept,
    "decontaminate": rows_kept,
    "distill": distill,
    "judge": judge,
    "difficulty": difficulty,
    "select": select,
    "filter_tests": filter_tests,
    "filter_rl": filter_rl,
    "sft": sft,
    "rl": rl,
    "evaluate": evaluate,
}
"""By the name of the stage's body; any other is `once`."""
