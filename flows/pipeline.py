"""The whole way from a base model to a reasoning model, which every form of a profile runs, and
what every flow run shows on its pages in Prefect and MLflow: its plan, its report, a link between
them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coolname.data import config as names  # which Prefect has its words from

from ..configs.loading import differences
from ..configs.settings.base import key_of
from ..configs.settings.pipeline import Pipeline
from ..tasks.engine.events import Planned
from ..tasks.observe.prefect import show_link, show_markdown, show_table, this_flow_run
from ..tasks.observe.registry import log_complete
from ..tasks.observe.run_context import RunSpec, TrackedRun, run_context
from ..tasks.observe.tracker import tags_of
from ..tasks.report.page import with_inline_plots
from ..tasks.report.report import SCORES, summary_text
from ..tasks.store.lineage import CompleteRun, note_complete
from ..tasks.store.store import Artifact
from .plan import Plan, plan, rows, summary
from .stages import run_stages

MODELS = ("base", "sft", "rl_math", "rl_code")
_GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho"
_GREEK += "|sigma|tau|upsilon|phi|chi|psi|omega"
# By Prefect: puzzling-orca; in a form iota71-mariah, beta3-canis-majoris-a.
_BY_SERVER = {word for part in names.values() for word in part.get("words", ())}


def typed_name() -> str:
    """What somebody called this run in its form; '' where Prefect made up a name."""
    name = this_flow_run().name
    by_server = "-" in name and _BY_SERVER.issuperset(name.split("-"))
    return "" if by_server or re.fullmatch(rf"({_GREEK})\d*(-[a-z]+)+", name) else name


def run_pipeline(settings: Pipeline, until: str, force: Sequence[str], verify: bool) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. Returns the folder of the last result."""
    asked = {"force": frozenset(force), "verify": verify}
    with run_context(run_spec(settings, "pipeline", key_of(settings), **asked)) as run:
        stages = plan(settings, run, until)
        publish_plan(stages, run)
        if any(stage.action != "reuse" for stage in stages):
            run.tracker.put("its charts", lambda s: s.tag(run.run_id, tags_of("computing")))
        run.tracker.save_view([protocol.name for protocol in settings.evaluate.protocols])
        made = run_stages(settings, until)
        if "report" not in made:
            return f"stopped after {until}"
        report = made["report"]
        at = run.store.manifest(report).made
        run.tracker.log(run.run_id, accuracy_by_stage(made), at)
        log_complete(run.tracker, run.run_id, made)
        publish_report(report, {}, run)
        flow_run = this_flow_run()
        ids = {"flow_run": flow_run.id, "mlflow_run": run.run_id, "name": flow_run.name}
        ids |= {"profile": settings.profile, "report": report.key}
        note_complete(run.store, CompleteRun(seed=settings.seed, **ids))
        return str(report.folder)


def accuracy_by_stage(made: Mapping[str, Artifact]) -> dict[str, dict[int, float]]:
    """`aime24/avg` at 0 to 3: base, SFT, math RL, code RL; what runs are compared by."""
    curves: dict[str, dict[int, float]] = {}
    for step, model in enumerate(MODELS):
        scores = made.get(f"evaluate_{model}")
        for name, value in scores.metrics.items() if scores else ():
            if name.endswith("/avg"):
                curves.setdefault(name, {})[step] = value
    return curves


def publish_plan(stages: Plan, run: TrackedRun, head: str = "") -> None:
    """The first artifacts of a run, below a `head`: where it is in MLflow, and what it will do."""
    run.tell(Planned(stages))
    run.display.links = links = run.story().links
    if address := links["MLflow"]:
        run.display.logger().info("this run in MLflow: %s", address)
        show_link("klear-mlflow", address, "This run in MLflow")
    show_table("klear-plan", rows(stages), f"{head}\n\n{summary(stages)}".lstrip())
    run.tracker.note(run.run_id, summary_text(run.story(), "", links))


def publish_report(page: Artifact, figures: Mapping[str, float], run: TrackedRun) -> None:
    """Show a report on the flow run in Prefect, on the parent run in MLflow and where the run was
    started.

    `figures` become metrics of the run in MLflow. What a report says of scores stands in a summary
    of this run, which may not be the one that wrote the report.
    """
    run.store.fetch(page)
    run.tracker.log(run.run_id, figures)
    story, text = run.story(), page.file("report.md").read_text()
    table = scores.read_text() if (scores := page.folder / SCORES).exists() else ""
    head = summary_text(story, table, story.links)
    if table:
        run.display.summary = summary_text(story, table)
        text = re.sub(r"^## Summary\n.*?(?=^## |\Z)", "", text, count=1, flags=re.M | re.S)
    text = f"{head}\n\n{text}"
    run.tracker.note(run.run_id, head if table else text)
    for name in ("report.html", "report.md"):
        file = str(page.file(name))
        run.tracker.put(name, lambda server, file=file: server.log_artifact(run.run_id, file))
    show_markdown("klear-report", with_inline_plots(text, page.folder))


def run_spec(
    settings: Pipeline,
    kind: Literal["pipeline", "stage", "ablation", "cell"],
    meaning: str,
    **more: Any,
) -> RunSpec:
    """A run of the whole or of a part of what `settings` say; `more` fields may replace them."""
    said = {"resolved": settings.model_dump(mode="json"), "changed": tuple(differences(settings))}
    said |= {"stall_minutes": settings.stall_minutes}
    return RunSpec(kind, settings.profile, settings.seed, meaning, **{**said, **more})
