"""The whole way from a base model to a reasoning model, and what every run shows on its pages in
Prefect and MLflow: its plan, its report, a link between them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from ..configs.loading import Request
from ..configs.machine import load_machine
from ..configs.settings.base import key_of
from ..configs.settings.explain import ConfigError
from ..configs.settings.pipeline import Pipeline
from ..tasks.answers.judge import judge
from ..tasks.engine.events import Planned
from ..tasks.engine.run import Run
from ..tasks.engine.scheduler import Node, run_graph
from ..tasks.observe.prefect import show, this_flow_run
from ..tasks.observe.registry import accuracy, log_complete, log_origins
from ..tasks.observe.run_context import RunSpec, TrackedRun, run_context
from ..tasks.observe.tracker import tags_of
from ..tasks.report.lineage_page import lineage_table
from ..tasks.report.page import with_inline_plots
from ..tasks.report.report import SCORES, summary_text
from ..tasks.report.results import ACCURACY
from ..tasks.store.lineage import EVALUATION, CompleteRun, note_complete
from ..tasks.store.shared import open_store
from ..tasks.store.store import Artifact
from ..training.sizing import refuse
from .dag import Dag, StageCall, build_dag, upstream_of
from .plan import Plan, plan, refuse_without_gpu, rows, summary

MODELS = ("base", "sft", "rl_math", "rl_code")


def run_pipeline(
    request: Request, until: str, force: frozenset[str], verify: bool, plan_only: bool = False
) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. Returns the folder of the last result."""
    settings = request.settings
    if plan_only:
        planning = Run(store=open_store(load_machine()), seed=settings.seed, force=force)
        return show_plan(plan(settings, planning, until).kept(request.changed))
    flags = {"force": force, "verify": verify}
    rerun = rerun_fields(request, lines_by_stage(request))
    spec = run_spec(request, "pipeline", key_of(settings), rerun=rerun, **flags)
    with run_context(spec) as run:
        stages = plan(settings, run, until)
        publish_plan(stages.kept(request.changed), run)
        run.tracker.save_views([protocol.name for protocol in settings.evaluate.protocols])
        results = compute(settings, until)
        log_origins(run.tracker, run.run_id, results, run.store)
        if "report" not in results:
            return f"stopped after {until}"
        report = results["report"]
        moment = run.store.manifest(report).made
        log_accuracy(run, results, settings, moment)
        log_complete(run.tracker, run.run_id, results, settings, run.store)
        publish_report(report, {}, run)
        last = run.store.manifest(results[EVALUATION + MODELS[-1]])
        table = lineage_table(run.store, last, run.tracker.run_url)
        show("markdown", "klear-lineage", table, "What the last scores were made from, and why")
        flow_run = this_flow_run()
        complete = CompleteRun(
            flow_run=flow_run.id,
            mlflow_run=run.run_id,
            name=flow_run.name,
            profile=settings.profile,
            seed=settings.seed,
            report=report.key,
            source=request.file.name,
            overrides=request.overrides,
        )
        note_complete(run.store, complete)
        return str(report.folder)


def compute(
    settings: Pipeline, until: str = "report", calls: Iterable[StageCall] = ()
) -> dict[str, Artifact]:
    """The results of the stages that `until` is made from and its own, or of these calls alone, by
    name; those that do not need each other run side by side. Raises DoesNotFit before the first
    stage when the topology's machines cannot run one of them."""
    graph: dict[str, Node[Artifact]] = {}
    for call in calls or upstream_of(until, build_dag(settings)):
        work = partial(call.stage, settings=call.settings)
        graph[call.stage.name] = Node(call.inputs, work, every_core=call.stage.body is judge.body)
    refuse(settings, [*graph])
    return run_graph(graph)


def compute_one(call: StageCall, *inputs: Artifact) -> Artifact:
    """The result of one stage, in a thread as those of a run: there it is watched."""
    name, work = call.stage.name, partial(call.stage, *inputs, settings=call.settings)
    return run_graph({name: Node((), work)})[name]


def log_accuracy(
    run: TrackedRun,
    results: Mapping[str, Artifact],
    settings: Pipeline,
    moment: float = 0.0,
    metrics: Mapping[str, float] = {},
) -> None:
    """The accuracy of the models evaluated, in MLflow, whose view of scores lists the run then; and
    `metrics`, of which an average has its point at the step of its model alone."""
    curves = accuracy_by_stage(results, settings)
    run.tracker.log(run.run_id, {**metrics, **curves}, moment)
    if curves:
        run.tracker.put("its scores", lambda server: server.tag(run.run_id, tags_of("scored")))


def accuracy_by_stage(
    results: Mapping[str, Artifact], settings: Pipeline
) -> dict[str, dict[int, float]]:
    """`accuracy/math`, `accuracy/code` and `aime24/avg` at 0 to 3: base, SFT, math RL, code RL;
    what runs are compared by."""
    curves: dict[str, dict[int, float]] = {}
    for step, model in enumerate(MODELS):
        if scores := results.get(f"evaluate_{model}"):
            domains = {ACCURACY + n: v for n, v in accuracy(scores.metrics, settings).items()}
            averages = {n: v for n, v in scores.metrics.items() if n.endswith("/avg")}
            for name, value in (domains | averages).items():
                curves.setdefault(name, {})[step] = value
    return curves


def publish_plan(stages: Plan, run: TrackedRun, head: str = "") -> None:
    """The first artifacts of a run, below a `head`: where it is in MLflow, and what it will do.
    Raises DoesNotFit where this machine cannot do it."""
    run.tell(Planned(stages))
    run.display.links = links = run.pages.story().links
    if address := links["MLflow"]:
        run.display.logger().info("this run in MLflow: %s", address)
        show("link", "klear-mlflow", address, "This run in MLflow")
    show_plan(stages, head)
    run.tracker.note(run.run_id, summary_text(run.pages.story(), "", links))
    refuse_without_gpu(stages)


def show_plan(stages: Plan, head: str = "") -> str:
    """The plan as an artifact, below a `head`."""
    show("table", "klear-plan", rows(stages), f"{head}\n\n{summary(stages)}".lstrip())
    return "only planned"


def publish_report(page: Artifact, figures: Mapping[str, float], run: TrackedRun) -> None:
    """Show a report on the flow run in Prefect, on the parent run in MLflow and where the run was
    started.

    `figures` become metrics of the run in MLflow. What a report says of scores stands in a summary
    of this run, which may not be the one that wrote the report.
    """
    run.store.fetch(page)
    run.tracker.log(run.run_id, figures)
    story, text = run.pages.story(), page.file("report.md").read_text()
    table = scores.read_text() if (scores := page.folder / SCORES).exists() else ""
    head = summary_text(story, table, story.links)
    if table:
        run.display.summary = summary_text(story, table)
        text = re.sub(r"^## Summary\n.*?(?=^## |\Z)", "", text, count=1, flags=re.M | re.S)
    text = f"{head}\n\n{text}"
    stages = " · ".join(f"[{h.stage}]({h.url})" for h in story.happened if h.url)
    of_stages = f"\n\nRuns of its stages, also where they were reused: {stages}" * bool(stages)
    run.tracker.note(run.run_id, (head if table else text) + of_stages)
    for name in ("report.html", "report.md"):
        file = str(page.file(name))
        run.tracker.put(name, lambda server, file=file: server.log_artifact(run.run_id, file))
    shown = "What this run came to: scores with intervals, curves, data, and where each is from"
    show("markdown", "klear-report", with_inline_plots(text, page.folder), shown)


def lines_by_stage(request: Request) -> dict[str, list[str]]:
    """For each stage, the overrides of a request that change it."""
    dag, lines = build_dag(request.settings), request.overrides
    by_stage: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        without: Dag = {}
        with suppress(ConfigError):
            without = build_dag(request.file.pipeline([x for x in lines if x != line]))
        for stage, call in dag.items():
            if not line.startswith("seed=") and without.get(stage) != call:
                by_stage.setdefault(stage, []).append(line)
    return by_stage


def rerun_fields(request: Request, lines: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the form of a stage begins with that is run again: `changes` are by stage."""
    changes = {stage: "\n".join(some) for stage, some in lines.items()}
    return {"profile": request.file.name, "seed": request.settings.seed, "changes": changes}


def run_spec(
    request: Request,
    kind: Literal["pipeline", "stage", "ablation", "cell"],
    meaning: str,
    **fields: Any,
) -> RunSpec:
    """A run of the whole or of a part of a request; `fields` may replace what it says."""
    settings = request.settings
    defaults = {
        "resolved": settings.model_dump(mode="json"),
        "changed": request.changed,
        "stall_minutes": settings.stall_minutes,
    }
    return RunSpec(kind, settings.profile, settings.seed, meaning, **defaults | fields)
