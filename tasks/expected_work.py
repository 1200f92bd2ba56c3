"""How much work a stage will be: from its settings, from its inputs where their counts are known,
from the nearest earlier result, and where all of these are silent from a named assumption."""

from collections.abc import Callable

from configs.data_stages import SampleSettings, SelectSettings
from configs.evaluate_stage import BenchmarkProtocol, EvaluateSettings
from configs.sources import CollectSettings, Source
from configs.training_stages import RLSettings, SFTSettings
from tasks.scene import Scene, Work

ASSUMED = "assumed/"
OF_DISK = frozenset({"bytes_per_token", "bytes_per_row"})
"""Assumptions that tell about disk alone."""
KEPT = "kept/"
MODELS_KEPT = "models_kept"
ROWS = {"aime24": 30, "aime25": 30, "hmmt25": 30, "math500": 500, "livecodebench": 1055}
"""Rows of the benchmarks of the catalogue."""
PROBLEMS = {"aime24": 30, "aime25": 30, "hmmt25": 30, "lcb_v5": 374, "lcb_v6": 131}
"""Problems of the published benchmarks (eval/benchmarks.py); none is in two of these names."""


def collect(s: Scene) -> Work:
    """Rows by source: counted by an earlier run, by `size` or `limit`, else assumed."""
    settings: CollectSettings = s.settings
    counts: dict[str, float] = {}
    for source in settings.sources:
        known = _counted(source, s) or (source.size if source.kind == "generated" else None)
        known = known or ROWS.get(source.use)
        if known is None:
            known = source.limit or s.assume("source_rows")
            counts[ASSUMED + source.name] = float(source.limit is None)
        counts[KEPT + source.name] = float(known)
    rows = sum(n for name, n in counts.items() if name.startswith(KEPT))
    return Work(rows, "rows", bytes=_rows_bytes(rows, s), counts={**counts, "kept": rows})


def _counted(source: Source, s: Scene) -> float | None:
    mine = source.model_dump(mode="json", exclude={"rank"})
    for past in s.earlier.of("collect", "benchmarks"):
        for theirs in past.tree.get("sources", ()):
            if {k: v for k, v in theirs.items() if k != "rank"} == mine:
                return past.manifest.metrics.get(KEPT + source.name)
    return None


def rows_kept(s: Scene) -> Work:
    """Dedup and decontamination: the counts of the first input, less the share that goes."""
    rows = s.count(0, "kept") or 0.0
    share = _kept_share(s, "kept")
    given = s.inputs[0].metrics
    counts = {n: v * share for n, v in given.items() if n.startswith(KEPT)}
    counts |= {n: v for n, v in given.items() if n.startswith(ASSUMED)}
    kept = {"kept": rows * share}
    return Work(rows, "rows", bytes=_rows_bytes(rows, s), counts={**counts, **kept})


def filter_tests(s: Scene) -> Work:
    """RL prompts to ask about: of counted sources, else what the paper kept before its filter."""
    rows = s.count(0, "kept") or 0.0
    counted = _of_sources(s, s.settings.sources)
    if counted is not None:
        asked = counted
    else:
        published = s.assume("rl_math_prompts") + s.assume("rl_code_prompts")
        asked = published / s.assume("rl_kept")
    return Work(rows, "rows", bytes=_rows_bytes(asked, s), counts={"kept": asked})


def filter_rl(s: Scene) -> Work:
    rows = s.count(0, "kept") or 0.0
    kept = rows * _kept_share(s, "rl_kept")
    return Work(rows, "rows", bytes=_rows_bytes(kept, s), counts={"kept": kept})


def _kept_share(s: Scene, assumption: str) -> float:
    metrics = s.past.manifest.metrics if s.past else {}
    total = metrics.get("kept", 0.0) + metrics.get("rejected", 0.0)
    return metrics["kept"] / total if total else s.assume(assumption)


def distill(s: Scene) -> Work:
    """Answers: prompts × samples, each of the mean length of an earlier run or of the assumed."""
    settings: SampleSettings = s.settings
    prompts = _prompts(s, settings)
    samples = prompts * settings.samples_per_prompt
    scripted = settings.engine.kind in ("scripted", "recorded")
    each = s.mean("tokens", "samples")
    if each is None and not scripted:
        each = min(s.assume("answer_tokens"), float(settings.sampling.max_tokens))
    asked = s.mean("prompt_tokens", "samples") or s.assume.quietly("prompt_tokens")
    tokens = None if each is None else samples * each
    counts = {"samples": samples, "prompts": prompts, "tokens": tokens or 0.0}
    size = _bytes(tokens, "tokens", s)
    if scripted:
        size = _bytes(samples, "samples", s)
        return Work(samples, "answers", tokens, samples * asked, bytes=size, counts=counts)
    return Work(tokens or 0.0, "tokens", tokens, samples * asked, 0.0, size, counts)


def _prompts(s: Scene, settings: SampleSettings) -> float:
    if s.inputs and s.inputs[0].stage == "filter_tests":
        return s.count(0, "kept") or 0.0
    counted = _of_sources(s, settings.sources)
    return s.assume("sft_prompts") if counted is None else counted


def _of_sources(s: Scene, sources: tuple[str, ...]) -> float | None:
    """Prompts of the sources (empty: all) in the first input; None if one was only assumed."""
    given = s.inputs[0].metrics if s.inputs else {}
    chosen = sources or [n.removeprefix(KEPT) for n in given if n.startswith(KEPT)]
    if any(given.get(ASSUMED + name) for name in chosen):
        return None
    counts = [given.get(KEPT + name) for name in chosen]
    known = [n for n in counts if n is not None]
    return sum(known) if known else None


def judge(s: Scene) -> Work:
    answers = s.count(1, "samples") or 0.0
    return Work(answers, "answers", bytes=answers * 10, counts={"scores": answers})


def difficulty(s: Scene) -> Work:
    rows = s.count(0, "kept") or 0.0
    return Work(rows, "rows", bytes=rows * 10)


def select(s: Scene) -> Work:
    """Examples: every answer (§5.1.1), unless a size or an earlier share says otherwise."""
    settings: SelectSettings = s.settings
    answers = s.count(1, "samples") or 0.0
    metrics = s.past.manifest.metrics if s.past else {}
    total = metrics.get("kept", 0.0) + metrics.get("rejected", 0.0)
    kept = float(settings.size or answers * (metrics["kept"] / total if total else 1.0))
    tokens = s.count(1, "tokens")
    if s.past:
        size = _bytes(kept, "kept", s)
    else:
        size = _bytes(tokens * kept / answers if tokens and answers else None, "", s)
    counts = {"kept": kept, "answer_tokens": tokens / answers if tokens and answers else 0.0}
    return Work(answers, "answers", bytes=size, counts=counts)


def sft(s: Scene) -> Work:
    """Token places: epochs × examples × places of an example; steps × batch_tokens when done."""
    settings: SFTSettings = s.settings
    examples = s.count(1, "kept") or 0.0
    each = _places_per_example(s)
    if each is None:
        answer = s.count(1, "answer_tokens") or s.assume("answer_tokens")
        each = min(answer + s.assume("prompt_tokens"), float(settings.max_length))
    places = settings.epochs * examples * each
    return Work(places, "tokens", places, trained_tokens=places, bytes=_checkpoint_bytes(s))


def _places_per_example(s: Scene) -> float | None:
    past = s.past
    data = s.earlier.parent(past, "select") if past else None
    if past is None or data is None or not data.metrics.get("kept"):
        return None
    steps, epochs = past.manifest.metrics.get("steps"), past.tree.get("epochs")
    if not steps or not epochs or past.tree.get("max_length") != s.settings.max_length:
        return None
    return steps * past.tree["batch_tokens"] / (epochs * data.metrics["kept"])


def rl(s: Scene) -> Work:
    """Tokens of all answers: steps × prompts × rollouts; oversampling generates more than are
    trained on."""
    settings: RLSettings = s.settings
    trained = settings.steps * settings.prompts_per_step * settings.rollouts_per_prompt
    rollouts = trained * settings.oversampling
    answer = s.past.mean("completions/mean_length") if s.past else 0.0
    if not answer:
        answer = min(s.assume("answer_tokens"), float(settings.max_tokens))
    prompt = min(s.assume.quietly("prompt_tokens"), float(settings.max_prompt_tokens))
    kept = float((settings.steps - 1) // settings.keep_every if settings.keep_every else 0)
    return Work(
        rollouts * answer,
        "tokens",
        rollouts * answer,
        rollouts * prompt,
        trained * (prompt + answer),
        _bytes_with_kept(kept, s),
        {"rollouts": float(rollouts), MODELS_KEPT: kept},
    )


def evaluate(s: Scene) -> Work:
    """avg@k: k answers to every problem of every benchmark, and those of the learning curve."""
    settings: EvaluateSettings = s.settings
    answers = once_each = sum(p.k * _problems(p, s) for p in settings.protocols)
    if along := settings.along_the_way():
        kept = s.count(0, MODELS_KEPT) or 0.0
        answers += kept * sum(p.k * _problems(p, s) for p in along.protocols)
    each = None
    if s.past and s.past.tree.get("protocols") == settings.model_dump(mode="json")["protocols"]:
        known = s.past.manifest.metrics
        each = known.get("completion_tokens", 0.0) / max(1.0, known.get("answers", once_each))
    if not each:
        each = min(s.assume("answer_tokens"), float(settings.sampling.max_tokens))
    tokens = answers * each
    return Work(tokens, "tokens", tokens, bytes=_bytes(tokens, "completion_tokens", s))


def _problems(protocol: BenchmarkProtocol, s: Scene) -> float:
    source = protocol.source or protocol.name
    counted = s.count(1, KEPT + source)
    assumed = s.count(1, ASSUMED + source)
    windowed = bool(protocol.date_from or protocol.date_to)
    if counted is not None and not assumed and not windowed:
        return counted
    if (known := PROBLEMS.get(protocol.name)) is not None:
        return float(known)
    return s.assume("benchmark_problems")


def once(s: Scene) -> Work:
    """Stages whose size does not depend on what they get: the base model, the report."""
    return Work(1.0, "run", bytes=_checkpoint_bytes(s) if s.stage == "base" else None)


def _rows_bytes(rows: float, s: Scene) -> float | None:
    return _bytes(rows, "kept", s, "bytes_per_row")


def _bytes(
    count: float | None, of: str, s: Scene, assumption: str = "bytes_per_token"
) -> float | None:
    """`count` × bytes of an earlier result for each of what its metric `of` counts."""
    if count is None:
        return None
    counted = s.past.manifest.metrics.get(of) if s.past else None
    each = s.past.bytes / counted if s.past and counted else s.assume(assumption)
    return count * each


def _bytes_with_kept(kept: float, s: Scene) -> float | None:
    """Of the result and of the models that are kept along the way, all of one size."""
    each = _checkpoint_bytes(s)
    before = s.past.manifest.metrics.get(MODELS_KEPT, 0.0) if s.past else 0.0
    return each and each * (1 + kept) / (1 + before)


def _checkpoint_bytes(s: Scene) -> float | None:
    """bf16 weights: 2·N; an earlier checkpoint of the same model has exactly these bytes."""
    if s.past:
        return float(s.past.bytes)
    return 2.0 * s.facts.parameters if s.facts else None


WORK: dict[str, Callable[[Scene], Work]] = {
    "collect": collect,
    "dedup": rows_kept,
    "decontaminate": rows_kept,
    "distill": distill,
    "judge": judge,
    "difficulty": difficulty,
    "select": select,
    "filter_tests": filter_tests,
    "filter_rl": filter_rl,
    "base": once,
    "sft": sft,
    "rl": rl,
    "evaluate": evaluate,
    "report": once,
}
"""By the name of the stage's body."""
