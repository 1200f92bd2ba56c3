"""How much work a stage will be: from its settings, from its inputs where their counts are known,
from earlier results in the store, and where all of these are silent from a named assumption."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import inf, isnan, nan
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ...configs.settings.base import flat, read_catalogue
from ...configs.settings.evaluation import BenchmarkProtocol, EvaluateSettings
from ...configs.settings.pipeline import SAMPLERS
from ...configs.settings.topology import Assumptions
from ...configs.settings.training import RLSettings
from ...training.launch.result_files import METRICS, read_lines
from ...training.sizing import ModelFacts
from ..store.lineage import of_last_run
from ..store.store import MANIFEST, Artifact, Manifest, Store, read_manifest
from .source_rows import facts_of_source, recorded_answers, rows_in, stored_tokens

KEPT = "kept/"  # Begins the count of a source; NaN where nobody has counted it.
PROMPT, ANSWER, ANSWERS = "mean_prompt_tokens", "answer_tokens", "published_answers"
"""Means of tokens, and published answers a problem; after them, as after `KEPT`, the source."""
MODELS_KEPT = "models_kept"
SAVED = "saved_tokens"
"""Of answers that nobody has to generate, since they or their pass rates are published."""
REPORTED = "reported_share"  # Of the work, what the progress file of the stage is about.
CURATED = 16  # Answers to an RL prompt that a published pass rate stands for (§3.2.1).
PROBLEMS: Mapping[str, Any] = read_catalogue("problems")["problems"]
# On disk, as compressed parquet.
BYTES_PER_TOKEN, BYTES_PER_ROW, BYTES_PER_SCORE = 1.5, 1_000.0, 10.0
ROWS_READ = ("kept", "rejected", "easy", "hard", "unrated")
FREE = ("scripted", "recorded")  # Engines that ask no model.
MOST_READ = 40
"""Manifests of a stage that are read, the newest: a plan stays fast in a store of thousands."""
MODELS = ("base", "sft", "rl_math", "rl_code")


@dataclass(frozen=True)
class PastResult:
    manifest: Manifest
    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """By dotted name."""
        return flat(self.manifest.settings)

    def sum(self, *metrics: str) -> float:
        return sum(self.manifest.metrics.get(name, 0.0) for name in metrics)

    def mean(self, metric: str) -> float:
        """Over the steps of training; 0 where none was logged."""
        values = [line["metrics"][metric] for line in self._log if metric in line["metrics"]]
        return sum(values) / len(values) if values else 0.0

    @cached_property
    def seconds(self) -> float:
        """The manifest has the last attempt's; earlier ones took as long as so many usual steps."""
        times = [line["time"] for line in self._log if "time" in line]
        usual = median([b - a for a, b in pairwise(times)] or [0.0])
        return max(self.manifest.seconds, usual * len(times))

    @cached_property
    def _log(self) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.folder / METRICS) if "metrics" in line]


class StoreHistory:
    """The results of a store, by stage: that of the last complete run, then the newest first."""

    def __init__(self, store: Store) -> None:
        self._root, self._manifest = store.root, cache(store.manifest)
        self._last = cache(lambda: of_last_run(store))
        self._newest = cache(self._read)

    def results_of(self, *stages: str) -> Iterator[PastResult]:
        """Every readable one of the `MOST_READ` newest results of each stage."""
        for stage in stages:
            yield from self._newest(stage)

    def base_of(self, manifest: Manifest) -> Manifest | None:
        """The manifest of the base model behind a model or evaluation; None when one is gone."""
        if manifest.stage == "base":
            return manifest
        model = next((i for i in manifest.inputs if i.stage in MODELS), None)
        with suppress(FileNotFoundError):  # or damaged
            # pyright does not know that a frozen record has a hash.
            return self.base_of(self._manifest(model)) if model else None  # pyright: ignore
        return None

    def _read(self, stage: str) -> list[PastResult]:
        dated: list[tuple[bool, float, Path]] = []
        for path in (self._root / stage).glob(f"*/{MANIFEST}"):
            with suppress(OSError):
                last = (stage, path.parent.name) in self._last()
                dated.append((last, path.stat().st_mtime, path.parent))
        results: list[PastResult] = []
        for *_, folder in sorted(dated, reverse=True)[:MOST_READ]:
            with suppress(FileNotFoundError):
                results.append(PastResult(read_manifest(folder), folder))
        return results


@dataclass(frozen=True)
class Workload:
    """`amount` rows, answers, tokens or runs; tokens to generate or train; counts of the result."""

    amount: float
    bytes: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    tokens: float | None = None
    prompt_tokens: float = 0.0
    trained_tokens: float = 0.0
    remark: str = ""  # What the counts leave out, or estimate.


@dataclass(frozen=True)
class ForecastInput:
    """What is known about a stage before it runs. `past`: the nearest result of the same kind."""

    settings: Any
    inputs: tuple[Artifact, ...]
    past: PastResult | None
    facts: ModelFacts | None
    assumptions: Assumptions
    used: list[str] = field(default_factory=list)  # Names of the assumptions that were used.

    def assume(self, name: str) -> float:
        """NaN where the profile assumes nothing."""
        value = getattr(self.assumptions, name)
        if value is not None and name not in self.used:
            self.used.append(name)
        return nan if value is None else float(value)

    def count(self, place: int, name: str) -> float:
        """A count of an input, measured or expected; 0 where it has none."""
        return self.inputs[place].metrics.get(name, 0.0) if place < len(self.inputs) else 0.0

    def mean(self, total: str, *parts: str) -> float:
        """A metric of the nearest earlier result over the sum of others; 0 where it lacks them."""
        count = self.past.sum(*parts) if self.past else 0.0
        return self.past.sum(total) / count if self.past and count else 0.0

    def tokens(self, name: str, mean: float, at_most: int) -> float:
        """A mean length: the measured, else the assumed, else what settings allow, so printed."""
        if not mean > 0:
            mean = self.assume(name)
            if name not in self.used:
                self.used.append(name)
        return float(at_most) if isnan(mean) else min(mean, float(at_most))

    def weights(self, models: float = 1.0) -> float | None:
        """Bytes of so many models: as before, else 2·N each in bf16."""
        if self.past:
            return self.past.manifest.bytes * models / (1.0 + self.past.sum(MODELS_KEPT))
        return 2.0 * self.facts.parameters * models if self.facts else None

    def of_sources(self, sources: tuple[str, ...], place: int = 0) -> dict[str, float]:
        """Prompts of the sources (empty: all) in an input; NaN of one that nobody has counted."""
        counts = self.inputs[place].metrics if place < len(self.inputs) else {}
        names = sources or [n.removeprefix(KEPT) for n in counts if n.startswith(KEPT)]
        return {name: counts.get(KEPT + name, nan) for name in names}

    def mean_of(self, figure: str, sources: tuple[str, ...], place: int = 0) -> float:
        """A mean of the sources by their prompts; NaN where one does not have it."""
        rows = self.of_sources(sources, place)
        means = self.inputs[place].metrics if rows else {}
        total = sum(n * means.get(f"{figure}/{name}", nan) for name, n in rows.items() if n)
        return total / sum(rows.values()) if any(rows.values()) else nan


def collect(s: ForecastInput) -> Workload:
    """Problems by source: of local files, generated ones, or what the catalogue has counted."""
    settings, counts, guessed = s.settings, dict[str, float](), list[str]()
    for place in range(len(settings.sources)):
        source = settings.to_read(place)
        name, facts = source.name, facts_of_source(source, Path(settings.root))
        counts |= {KEPT + name: facts.problems, f"{PROMPT}/{name}": facts.prompt_tokens}
        counts |= {f"{ANSWERS}/{name}": facts.answers, f"{ANSWER}/{name}": facts.answer_tokens}
        for kind, count in facts.golds.items():
            counts[kind] = counts.get(kind, 0.0) + round(count)
        guessed += [name] if facts.estimated else []
    rows = sum(n for name, n in counts.items() if name.startswith(KEPT))  # NaN where one is
    remark = f"of {', '.join(guessed)} a part was read" if guessed else ""
    return Workload(rows, rows * BYTES_PER_ROW, {**counts, "kept": rows}, remark=remark)


def filter_workload(s: ForecastInput, share: float | None = None) -> Workload:
    """Filters: counts of the first input, less the share lost before; else a `share` stays."""
    share = s.mean("kept", "kept", "rejected") or (1.0 if share is None else share)
    rows, upstream = s.count(0, "kept"), s.inputs[0].metrics
    counts = {n: v * share for n, v in upstream.items() if n.startswith(KEPT) or n == "kept"}
    means = (PROMPT, ANSWERS, ANSWER)
    counts |= {n: v for n, v in upstream.items() if n.partition("/")[0] in means}
    return Workload(rows, rows * share * BYTES_PER_ROW, counts)


def filter_rl(s: ForecastInput) -> Workload:
    """As other filters; with published pass rates nobody samples the prompts."""
    work = filter_workload(s, s.assume("rl_kept"))
    if s.settings.pass_rates == "sampled":
        return work
    saved = s.count(0, "kept") * CURATED * s.assume("answer_tokens")  # NaN: nothing to say
    return replace(work, counts={**work.counts, SAVED: saved})


def filter_tests(s: ForecastInput) -> Workload:
    """RL prompts to ask about: of counted sources, else what the paper kept before its filter."""
    rows, upstream = s.of_sources(s.settings.sources), s.inputs[0].metrics
    prompts = sum(rows.values())
    if isnan(prompts) or not prompts:
        prompts = s.assume("rl_prompts") / s.assume("rl_kept")
    counts = {n: v for n, v in upstream.items() if n.partition("/")[2] in rows}
    return Workload(s.count(0, "kept"), prompts * BYTES_PER_ROW, {**counts, "kept": prompts})


def distill(s: ForecastInput) -> Workload:
    """Answers: prompts × samples, as long as in an earlier run, recorded or assumed."""
    settings, engine = s.settings, s.settings.engine
    names, per_prompt = settings.sources, float(settings.samples_per_prompt)
    published = engine.origin == "catalogue"
    if s.inputs and s.inputs[0].stage == "filter_tests":
        prompts, names = s.count(0, "kept"), ()
    else:
        prompts = sum(s.of_sources(names).values())
        if isnan(prompts) or not prompts:
            prompts = s.assume("sft_prompts")
    each, prompt_tokens, most = s.mean("tokens", "samples"), 0.0, inf
    if published:
        traces = s.inputs[-1].folder / "traces.parquet"
        length, number = s.mean_of(ANSWER, names), s.mean_of(ANSWERS, names)
        if isnan(length):
            length = stored_tokens(traces, "text")
            number = rows_in(traces) / (s.count(-1, "kept") or nan)
        if not isnan(length):
            each, per_prompt = length, min(per_prompt, number)
        each = each or s.assume("answer_tokens")
    elif engine.kind == "recorded":
        most, each = recorded_answers(engine.model_dump_json(by_alias=True))
    elif engine.kind not in FREE:
        each = s.tokens("answer_tokens", each, settings.sampling.max_tokens)
    samples, prompt = min(prompts * per_prompt, most), s.mean_of(PROMPT, names)
    if isnan(prompt) and s.inputs:
        prompt = stored_tokens(s.inputs[0].folder / "kept.parquet", "prompt")
    if engine.prices:
        prompt_mean = s.mean("prompt_tokens", "samples") or prompt
        prompt_tokens = samples * (s.assume("prompt_tokens") if isnan(prompt_mean) else prompt_mean)
    tokens = samples * (each or nan)
    counts = {"samples": samples, "prompts": prompts, "tokens": tokens, PROMPT: prompt}
    amount = samples if engine.kind in FREE else tokens
    if published:
        counts[SAVED] = tokens
    generated = None if engine.kind in FREE else tokens
    size, remark = tokens * BYTES_PER_TOKEN, ""
    if settings.fallback:
        remark = "answers of the fallback are not counted"
    return Workload(amount, size, counts, generated, prompt_tokens, remark=remark)


def scores(s: ForecastInput, place: int, name: str) -> Workload:
    """Judge and difficulty: a score for each of what an input counts."""
    rows = s.count(place, name)
    return Workload(rows, rows * BYTES_PER_SCORE)


def select(s: ForecastInput) -> Workload:
    """Examples: every answer (§5.1.1), unless a size or an earlier share says otherwise."""
    answers, tokens = s.count(1, "samples"), s.count(1, "tokens")
    kept = float(s.settings.size or answers * (s.mean("kept", "kept", "rejected") or 1.0))
    if answers and tokens:
        each = tokens / answers
    else:
        each = stored_tokens(s.inputs[1].folder / "samples.parquet", "text")
    counts = {"kept": kept, ANSWER: each, PROMPT: s.count(1, PROMPT)}
    return Workload(answers, kept * each * BYTES_PER_TOKEN, counts)


def sft(s: ForecastInput) -> Workload:
    """Token places: of expected examples or those in the store, else an epoch is as before."""
    epochs, examples = s.settings.epochs, s.inputs[1].folder / "kept.parquet"
    prompt, answer = s.count(1, PROMPT), s.count(1, ANSWER)
    answer = answer or stored_tokens(examples, "response")
    prompt = prompt if prompt > 0 else stored_tokens(examples, "prompt")
    unsaid = s.assumptions.prompt_tokens is None and not prompt > 0
    if s.past and (unsaid or not answer > 0):
        places = s.past.sum("steps") * s.past.settings["batch_tokens"] / s.past.settings["epochs"]
    else:
        prompt = prompt if prompt > 0 else s.assume("prompt_tokens")
        answer = answer if answer > 0 else s.assume("answer_tokens")
        each = s.tokens("answer_tokens", prompt + answer, s.settings.max_length)
        places = s.count(1, "kept") * each
    places *= epochs
    return Workload(places, s.weights(), {ANSWER: answer}, places, trained_tokens=places)


def rl(s: ForecastInput) -> Workload:
    """Tokens of all answers: steps × prompts × rollouts, with those that oversampling drops. They
    are as long as before, else as the answers that the model was trained on."""
    settings: RLSettings = s.settings
    trained = settings.steps * settings.prompts_per_step * settings.rollouts_per_prompt
    rollouts = float(trained * settings.oversampling)
    learnt = s.count(0, ANSWER)
    before = s.past.mean("completions/mean_length") if s.past else 0.0
    answer = s.tokens("answer_tokens", before or learnt, settings.max_tokens)
    prompt = s.tokens("prompt_tokens", s.mean_of(PROMPT, (), 1), settings.max_prompt_tokens)
    kept = float((settings.steps - 1) // settings.keep_every if settings.keep_every else 0)
    tokens, counts = rollouts * answer, {"rollouts": rollouts, MODELS_KEPT: kept, ANSWER: learnt}
    updated = trained * (prompt + answer)
    return Workload(tokens, s.weights(1.0 + kept), counts, tokens, trained_tokens=updated)


def evaluate(s: ForecastInput) -> Workload:
    """avg@k: k answers to every problem of every benchmark, and those of the learning curve."""
    settings: EvaluateSettings = s.settings

    def problems(p: BenchmarkProtocol) -> float:
        windowed = p.date_from or p.date_to
        count = nan if windowed else s.count(1, KEPT + (p.source or p.name)) or nan
        return PROBLEMS.get(p.name, nan) if isnan(count) else count

    own = answers = float(sum(p.k * problems(p) for p in settings.protocols))
    if along := settings.along_the_way():
        answers += s.count(0, MODELS_KEPT) * sum(p.k * problems(p) for p in along.protocols)
    each = s.mean("completion_tokens", "answers") or s.count(0, ANSWER)
    tokens = answers * s.tokens("answer_tokens", each, settings.sampling.max_tokens)
    share = own / answers if answers else 1.0  # the models on the way report elsewhere
    return Workload(tokens, tokens * BYTES_PER_TOKEN, {REPORTED: share}, tokens)


def _tokens_rolled_out(past: PastResult) -> float:
    s = past.settings
    a_step = s["prompts_per_step"] * s["rollouts_per_prompt"] * s["oversampling"]
    return past.sum("rollout_steps") * past.mean("completions/mean_length") * a_step


@dataclass(frozen=True)
class CostModel:
    """One kind of work, whichever stages do it."""

    work: Callable[[ForecastInput], Workload]
    done: Callable[[PastResult], float] = lambda past: past.sum(*ROWS_READ)
    """How much work an earlier result was, in the units of `work`."""
    stages: tuple[str, ...] = ()  # That are this kind, where they are not called by it.
    alike: tuple[str, ...] = ()
    """Settings in which two results agree if the rate of one tells about the other."""
    unit: Literal["rows", "model", "once"] = "rows"
    """What its time depends on. Those of a model are alike only if they go back to one base."""


SIZES = ("kind", "model", "layers", "hidden", "mlp", "heads", "kv_heads", "vocabulary")
ONCE = CostModel(lambda s: Workload(1.0, s.weights()), lambda past: 1.0, unit="once")
"""Stages whose size does not depend on what they get: the base model, the report."""
COST_MODELS = {
    "collect": CostModel(collect, stages=("collect", "benchmarks"), alike=("sources.*.kind",)),
    "dedup": CostModel(filter_workload, alike=("near",)),
    "decontaminate": CostModel(filter_workload),
    "distill": CostModel(
        distill, lambda p: p.sum("samples" if p.settings["engine.kind"] in FREE else "tokens"),
        SAMPLERS, ("engine.kind", "engine.model")),
    "judge": CostModel(
        partial(scores, place=1, name="samples"), lambda past: past.sum("scores"),
        ("judge", "judge_rl", "judge_rate", "judge_agreement"),
        ("sandbox", "max_tests", "stop_at_first_failure")),
    "difficulty": CostModel(partial(scores, place=0, name="kept")),
    "select": CostModel(select, alike=("size",)),
    "filter_tests": CostModel(filter_tests),
    "filter_rl": CostModel(filter_rl),
    "base": replace(ONCE, alike=SIZES),
    "sft": CostModel(sft, lambda p: p.sum("steps") * p.settings["batch_tokens"], unit="model"),
    "rl": CostModel(rl, _tokens_rolled_out, ("rl_math", "rl_code"), ("engine",), "model"),
    "evaluate": CostModel(
        evaluate, lambda past: past.sum("completion_tokens"),
        ("evaluate_rl_code", "evaluate_rl_math", "evaluate_sft", "evaluate_base"),
        ("engine", "sampling.max_tokens"), "model"),
}  # fmt: skip
"""By the name of the stage's body."""


def cost_model_of(body: str) -> CostModel:
    """Any other body is done once."""
    return COST_MODELS.get(body, ONCE)
