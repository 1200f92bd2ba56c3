"""Asking an engine for what a stage lacks, for no more money than may be spent.

Every answer is on disk before the next. The budget gate asks a pilot first, one sample of a few
prompts whose answers are used, and goes on when the estimate is below what needs approval, or below
what a person approved; it also stops when answers have really cost that much.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from eval.records import Problem
from tasks.stage.child import ChildFailed, run_child
from tasks.stage.progress import report
from tasks.store.store import SCRATCH
from tasks.tracking.prefect_states import ApprovalRequired
from training.engines.generate import SpentApproved, generate, is_local
from training.engines.interface import EngineError, Request, request_seed
from training.engines.journal import Journal, cost_of, journal_path
from training.launch.jobs import GenerateJob
from training.layout import RESULT


class Plan(Sequence[Request]):
    """The requests of a stage, made when they are asked for: `indices` of every problem's."""

    def __init__(self, problems: Sequence[Problem], indices: range, seed: int) -> None:
        self.problems, self.indices, self.seed = problems, indices, seed

    def __len__(self) -> int:
        return len(self.problems) * len(self.indices)

    def __getitem__(self, place: int) -> Request:  # type: ignore[override]
        row, column = divmod(range(len(self))[place], len(self.indices))
        p, index = self.problems[row], self.indices[column]
        seed = request_seed(self.seed, p.id, index)
        return Request(problem_id=p.id, index=index, prompt=p.prompt, seed=seed, part=p.source)


def ask(
    out: Path, requests: Sequence[Request], settings: SampleSettings, limit: float | None = None
) -> float:
    """Answer what the journal in `out` lacks; returns the tokens a second of this run.

    Raises EngineError when some could not be answered, SpentApproved when an endpoint's answers
    have cost `limit`. Finished answers are kept in every case. With a `limit` of 0 no engine is
    started: every answer is on file, or SpentApproved is raised.
    """
    engine, sampling = settings.engine, settings.sampling
    with Journal(journal_path(out)) as journal:
        if all(r.key in journal for r in requests):
            return 0.0
        if limit == 0:
            raise SpentApproved(0.0, len(journal))
    if not is_local(engine):
        key = api_key(engine)
        return generate(out, requests, engine, sampling, report, key=key, limit=limit)
    return _ask_in_child(out, requests, settings)


def _ask_in_child(out: Path, requests: Sequence[Request], settings: SampleSettings) -> float:
    file = out / SCRATCH / "requests.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(r.model_dump_json() + "\n" for r in requests)
    job = GenerateJob(out=out, engine=settings.engine, sampling=settings.sampling, requests=file)
    try:
        run_child(job, out)
    except ChildFailed as error:
        name, _, message = str(error).splitlines()[-1].partition(": ")
        if name.endswith(EngineError.__name__):  # what the engine said, without its traceback
            raise EngineError(message) from error
        raise
    result = out / RESULT
    return json.loads(result.read_text())["tokens_per_second"] if result.exists() else 0.0


def api_key(engine: EngineSettings) -> str | None:
    """The value of the Prefect Secret block `api_key_block`; None: the environment variable counts.

    Raises EngineError that names the block when it does not exist or cannot be read.
    """
    if engine.kind != "openai" or not engine.api_key_block:
        return None
    from prefect.blocks.system import Secret  # seconds, and most runs need no block

    try:
        block = Secret.load(engine.api_key_block, _sync=True)  # type: ignore[call-arg]
    except Exception as error:  # no server, no block, a block of another kind
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"the Prefect Secret block {engine.api_key_block!r} cannot be read ({first}): create "
            "it in the UI under Blocks, or name an environment variable by api_key_env"
        ) from None
    return str(block.get())  # type: ignore[union-attr]


class NeedsApproval(ApprovalRequired):
    """The stage costs more than may be spent without asking. Every answer so far is kept."""

    def __init__(self, what: str, allowed: float, wanted: float) -> None:
        self.wanted = math.ceil(wanted)
        """A whole amount that lets the stage go on."""
        super().__init__(
            f"{what}, and {allowed:,.2f} may be spent without approval. To approve it: the same "
            f"command with --approve-cost {self.wanted}, or engine.runtime.approved_cost="
            f"{self.wanted} in the settings of the stage; answers so far are kept"
        )


def within_budget(out: Path, plan: Plan, settings: SampleSettings) -> float:
    """`ask` the whole plan, after a pilot if the settings ask for one.

    Raises NeedsApproval, before or while money is spent, and ValueError without prices.
    """
    runtime = settings.engine.runtime
    if runtime.approve_above is None:
        return ask(out, plan, settings)
    if cost_of(runtime, 1, 1) is None:
        raise ValueError(
            "engine.runtime.approve_above needs prices: set engine.runtime.input_price and "
            "output_price (per million tokens)"
        )
    with suppress(SpentApproved):
        # A kill came after the last answer: nothing is left to buy.
        return ask(out, plan, settings, 0.0)
    pilot = pilot_of(plan, runtime.pilot_prompts)
    ask(out, pilot, settings)
    mean, high, said = estimate(out, pilot, len(plan), runtime)
    allowed = max(runtime.approve_above, runtime.approved_cost)
    if mean > allowed:
        raise NeedsApproval(said, allowed, high)
    try:
        return ask(out, plan, settings, allowed)
    except SpentApproved as spent:
        raise NeedsApproval(str(spent), allowed, max(high, 1.25 * spent.cost)) from None


def pilot_of(plan: Plan, prompts: int) -> Plan:
    """The first sample of `prompts` problems, spread evenly."""
    count = min(prompts, len(plan.problems))
    chosen = [plan.problems[i * len(plan.problems) // count] for i in range(count)]
    return Plan(chosen, plan.indices[:1], plan.seed)


def estimate(
    out: Path, pilot: Plan, answers: int, runtime: EngineRuntime
) -> tuple[float, float, str]:
    """What `answers` answers like those of the pilot will cost, the upper end of its 95 % interval
    by the spread of the pilot, and both in words."""
    with Journal(journal_path(out)) as journal:
        found = journal.samples(r.key for r in pilot)
        tokens = [(s.prompt_tokens, s.completion_tokens) for s in found]
    costs = [cost_of(runtime, *each) or 0.0 for each in tokens] or [0.0]
    each = fmean(costs)
    spread = 1.96 * stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
    mean, low, high = (answers * x for x in (each, max(0.0, each - spread), each + spread))
    words = (
        f"{answers:,} answers would cost about {mean:,.2f} ({low:,.2f} to {high:,.2f}; a pilot of "
        f"{len(tokens)} had {sum(n for _, n in tokens) / len(costs):,.0f} tokens an answer)"
    )
    return mean, high, words
