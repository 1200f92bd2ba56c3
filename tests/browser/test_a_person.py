"""What a person does in the browser, with real servers, a real worker and Chromium."""

import json
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psutil
import pytest
from cockpit import Cockpit
from home import eventually
from playwright.sync_api import Page, Request, expect
from prefect_pages import Form, RunPage, open_form, submitted
from processes import commanded

from tests.endpoint.conftest import MODEL, Endpoint, serving

RATE, RATE_SET = "sft_learning_rate", "sft.learning_rate"
LOAD = """
import mlflow, sys
mlflow.set_tracking_uri(sys.argv[1])
print(type(mlflow.transformers.load_model("models:/klear-tiny@best").model).__name__)
"""
TO_THE_MIDDLE = "box => box.scrollIntoView({block: 'center'})"
# whole runs, on a machine that may do other things too
pytestmark = [pytest.mark.system, pytest.mark.timeout(1_800)]


@dataclass(frozen=True)
class Ended:
    """A flow run and what was seen while it ran."""

    flow_run: str
    seconds: float = 0.0
    """Since the click on Cancel, until no process was left."""


def form_schema(place: Cockpit, form: str = "tiny") -> dict:
    return place.deployment(form)["parameter_openapi_schema"]


def tiny_form(page: Page, place: Cockpit):
    return open_form(page, place.prefect, "tiny", form_schema(place))


def visit(page: Page, place: Cockpit, flow_run: str) -> RunPage:
    page.goto(f"{place.prefect}/runs/flow-run/{flow_run}")
    return RunPage(page)


@pytest.fixture(scope="module")
def cancelled(place: Cockpit, page: Page, shot) -> Ended:
    """Started from the form with one value changed, cancelled in the middle of SFT."""
    form = tiny_form(page, place)
    form.number(RATE).fill("0.002")
    form.number(RATE).evaluate(TO_THE_MIDDLE)
    shot("form")
    return cancel_in_sft(page, place, form.start().flow_run)


def cancel_in_sft(page: Page, place: Cockpit, flow_run: str) -> Ended:
    away_until(page, place, flow_run, "sft")
    running = place.processes_of_runs()
    assert commanded("klear.training.launch.run_job", running)
    place.signal_jobs(signal.SIGSTOP)  # on a fast machine it would be over before the click
    run = visit(page, place, flow_run)
    since = run.cancel()
    place.signal_jobs(signal.SIGCONT)
    _, left = psutil.wait_procs(running, timeout=120)
    seconds = time.monotonic() - since
    assert not left, "processes of the cancelled run live on"
    run.shows("Cancelled")
    return Ended(flow_run, seconds)


def away_until(page: Page, place: Cockpit, flow_run: str, stage: str) -> None:
    """Until the stage has a checkpoint of this run. The window is elsewhere: without a graphics
    card the moving timeline would take the processor from the run that it shows."""
    page.goto("about:blank")
    before = place.checkpoints(stage)
    place.meanwhile(flow_run, lambda: place.checkpoints(stage) - before)


def test_cancel_in_sft_ends_every_process_and_keeps_its_work(place, cancelled, capsys):
    with (
        capsys.disabled()
    ):  # its bound, 5 s to SIGKILL, is the worker's: a busy machine has its own
        print(f"\nprocess tree gone {cancelled.seconds:.1f} s after Cancel")
    assert place.checkpoints("sft"), "the work that was done is gone"


@pytest.fixture(scope="module")
def finished(place: Cockpit, page: Page, cancelled: Ended, shot) -> Ended:
    """The cancelled run, copied to a new one and watched until its end."""
    form = visit(page, place, cancelled.flow_run).copy(form_schema(place))
    expect(form.number(RATE)).to_have_value("0.002")
    flow_run = form.start().flow_run
    away_until(page, place, flow_run, "rl_math")
    visit(page, place, flow_run)
    picture(page, shot, "running")
    completes(page, place, flow_run)
    picture(page, shot, "finished")
    return Ended(flow_run)


def completes(page: Page, place: Cockpit, flow_run: str) -> None:
    page.goto("about:blank")
    assert place.ended(flow_run)["state_name"] == "Completed", place.log(flow_run)
    visit(page, place, flow_run).shows("Completed")


def picture(page: Page, shot, name: str) -> None:
    """The timeline shows the whole run some seconds after its page is there; nothing says when."""
    page.get_by_text("Beginning flow run").first.wait_for()
    time.sleep(4)
    shot(name)


def test_the_next_run_continues_the_cancelled_sft_and_its_log_tells_of_the_work(place, finished):
    log = place.log(finished.flow_run)
    assert log.index("this run in MLflow: http") < log.index("collect")
    assert "sft: computing (resuming at step" in log
    assert re.search(r"rl_math: computed in .* 3 rollout steps", log)
    assert "Crash" not in log
    spans = {t["name"]: (t["start_time"], t["end_time"]) for t in place.tasks_of(finished.flow_run)}
    begin, end = zip(spans["RL: rl_math"], spans["evaluation: evaluate_sft"], strict=True)
    assert max(begin) < min(end), "what does not need each other ran one after the other"
    (sft,) = place.tagged("klear.stage", "sft")
    place.check_steps(sft)


def test_the_report_opens_from_the_run_and_leads_to_mlflow(place, page, finished, shot):
    run = visit(page, place, finished.flow_run)
    run.open_artifact("klear-report")
    expect(page.get_by_text("not comparable to the paper").first).to_be_visible()
    pictures = page.locator("main img, .markdown-renderer img")
    expect(pictures.first).to_be_visible()
    is_drawn = "picture => picture.complete && picture.naturalWidth > 0"
    assert all(picture.evaluate(is_drawn) for picture in pictures.all())
    shot("report")
    visit(page, place, finished.flow_run).open_artifact("klear-lineage")
    expect(page.get_by_role("columnheader", name="why it was computed")).to_be_visible()
    sft = page.get_by_role("row", name=re.compile("^sft "))
    expect(sft.first).to_contain_text("select")
    visit(page, place, finished.flow_run).open_artifact("klear-mlflow")
    link = page.get_by_role("link", name=re.compile("MLflow"))
    (mlflow_run,) = place.tagged("prefect.flow_run_id", finished.flow_run)
    assert mlflow_run in (link.first.get_attribute("href") or "")
    page.goto(link.first.get_attribute("href") or "")
    expect(page.get_by_role("link", name="Runs").first).to_be_visible()
    for panel in page.get_by_role("button", name="Close", exact=True).all():
        panel.click()  # of the assistant, at the first visit
    expect(page.get_by_text("Completed").or_(page.get_by_text("Finished")).first).to_be_visible()
    shot("mlflow_run")


@pytest.mark.parametrize(("view", "role", "shown"), [
    ("Accuracy", "heading", ["accuracy/math", "accuracy/code"]),
    ("Charts", "heading", ["rl_math/reward/mean vs rl_code/reward/mean"]),
    ("Scores", "columnheader", ["accuracy/math", "accuracy/code"]),
])  # fmt: skip
def test_the_views_of_an_experiment_open_from_its_description(
    view: str,
    role: Literal["heading", "columnheader"],
    shown: list[str],
    place: Cockpit,
    page: Page,
    finished: Ended,
    shot,
) -> None:
    page.goto(f"{place.mlflow_url}/#/experiments/{place.experiment('tiny')}/runs")
    link = page.get_by_role("link", name=view, exact=True)  # it opens in a new tab
    href = link.get_attribute("href")
    page.goto("about:blank")
    page.goto(f"{place.mlflow_url}/{href}")
    for name in shown:
        expect(page.get_by_role(role, name=name, exact=True).first).to_be_visible()
    shot(f"mlflow_{view.lower()}")


@pytest.fixture(scope="module")
def retried(place: Cockpit, page: Page, finished: Ended, shot) -> Ended:
    """A run with another learning rate, killed in code RL and retried in the UI."""
    form = visit(page, place, finished.flow_run).copy(form_schema(place))
    form.number("rl_code_learning_rate").fill("0.001")
    flow_run = form.start().flow_run
    away_until(page, place, flow_run, "rl_code")
    (engine,) = commanded("-m prefect", place.processes_of_runs())
    engine.send_signal(signal.SIGKILL)
    assert eventually(lambda: not place.processes_of_runs(), 60)
    run = visit(page, place, flow_run)
    run.shows("Crashed")
    picture(page, shot, "crashed")
    run.ask_for("Retry", confirmed_by="Retry")
    assert eventually(lambda: place.state(flow_run) != "Crashed")
    completes(page, place, flow_run)
    picture(page, shot, "retried")
    return Ended(flow_run)


def test_retry_continues_a_killed_run_where_it_was(place: Cockpit, retried: Ended) -> None:
    assert "rl_code: computing (resuming at step" in place.log(retried.flow_run)
    assert "Running" not in str(place.states(retried.flow_run))


def test_two_runs_compare_in_mlflow_by_what_differs(place, finished, retried):
    def params(ended: Ended) -> set[tuple[str, str]]:
        (run,) = place.tagged("prefect.flow_run_id", ended.flow_run)
        return set(place.mlflow.get_run(run).data.params.items())

    assert {name for name, _ in params(finished) ^ params(retried)} == {"rl_code.learning_rate"}


def test_a_stage_from_its_form_is_suspended_and_resumed_to_one_training(
    place: Cockpit, page: Page, finished: Ended, shot
) -> None:
    change = "sft.epochs=9"
    form = open_form(page, place.prefect, "stage", form_schema(place, "stage"))
    form.choose("stage", "sft")
    form.field("changes").locator("textarea").fill(change)
    shot("stage_form")
    flow_run = form.start().flow_run
    away_until(page, place, flow_run, "sft")
    assert place.jobs()
    place.signal_jobs(signal.SIGSTOP)
    run = visit(page, place, flow_run)
    run.ask_for("Suspend")
    place.signal_jobs(signal.SIGCONT)
    run.shows("Suspended")
    assert eventually(lambda: not place.processes_of_runs(), 60), "it trains on"
    run.ask_for("Resume")
    completes(page, place, flow_run)
    assert "sft: computing (resuming at step" in place.log(flow_run)
    assert place.states(flow_run)["sft"][-1] == "Completed"
    (parent,) = place.tagged("prefect.flow_run_id", flow_run)
    (sft,) = place.tagged("mlflow.parentRunId", parent)
    place.check_steps(sft)
    name = place.flow_run(flow_run)["name"]
    assert f"sft · {change}" in name, "the name that the form made up was kept"


def test_a_stage_is_run_again_from_the_page_of_its_run(place, page, finished, shot) -> None:
    visit(page, place, finished.flow_run).open_artifact("klear-stages")
    row = page.get_by_role("row", name=re.compile(r"^sft "))
    expect(row).to_be_visible()
    shot("stages")
    page.goto(row.get_by_role("link", name="rerun this stage").get_attribute("href") or "")
    form = Form(page, form_schema(place, "stage"))
    expect(form.field("changes").locator("textarea")).to_have_value(f"{RATE_SET}=0.002")
    expect(form.field("inputs_as_of").locator("textarea")).to_have_value(re.compile("^sft/"))
    flow_run = form.start().flow_run
    assert place.ended(flow_run)["state_name"] == "Completed"
    assert place.states(flow_run) == {"sft": ["Cached"]}


def test_a_form_is_submitted_in_the_updated_ui_and_only_plans(place, page, finished, shot) -> None:
    tiny = place.deployment("tiny")
    values = quote(json.dumps({**tiny["parameters"], "plan_only": True}))
    page.goto(f"{place.prefect}/v2/deployments/deployment/{tiny['id']}/run?parameters={values}")
    expect(page.get_by_text("lm_weight").first).to_be_visible()
    shot("updated_ui")
    answer = submitted(page, page.get_by_role("button", name="Submit", exact=True))
    run = place.ended(answer.json()["id"])
    assert run["name"] == "plan of tiny-seed0"
    assert place.artifacts(run["id"]) == {"klear-plan"}
    assert "Last plan: 20" in place.deployment("tiny")["description"]


def test_a_wrong_change_fails_its_run_with_the_fix_in_the_log(place: Cockpit, page: Page) -> None:
    form = tiny_form(page, place)
    form.field("changes").locator("textarea").fill("sft.min_learning_rate=5")
    run = form.start()
    run.shows("Failed")
    run.tab("logs")
    expect(page.get_by_text("min_learning_rate=5 is above its peak").first).to_be_visible()


def test_a_run_of_the_command_line_is_copied_to_a_new_one_in_the_browser(place, page, finished):
    place.klear("run", "tiny", "--set", "sft.learning_rate=0.002")
    typed = max(place.named("sft.learning_rate=0.002 · tiny-seed0"), key=lambda r: r["created"])
    run = visit(page, place, typed["id"])
    run.tab("task-runs")
    for stage in ("data: dedup", "SFT: sft", "RL: rl_math", "evaluation: evaluate_sft"):
        expect(page.get_by_text(stage, exact=True).first).to_be_visible()
    changes = run.copy(form_schema(place)).field("changes").locator("textarea")
    expect(changes).to_have_value("sft.learning_rate=0.002")


@pytest.mark.parametrize(("stage", "tab", "shown"), [
    ("", "", ["% right", "Changed: sft.learning_rate=0.002", "klear-tiny", "benchmarks"]),
    ("sft", "/model-metrics", ["sft/entropy", "sft/loss", "sft/learning_rate"]),
    ("rl_math", "/model-metrics", ["rl_math/off_policy", "rl_math/reward"]),
    ("evaluate_sft", "/artifacts/answers.json", ["answers.json", "verdict"]),
])  # fmt: skip
def test_mlflow_shows(
    stage: str, tab: str, shown: list[str], place: Cockpit, page: Page, finished: Ended, shot
) -> None:
    (run,) = place.tagged("prefect.flow_run_id", finished.flow_run)
    if stage:
        query = f"tags.`mlflow.parentRunId` = '{run}' and tags.`klear.stage` = '{stage}'"
        (match,) = place.tracked(query, "tiny")
        run = match.info.run_id
    runs = f"{place.mlflow_url}/#/experiments/{place.experiment('tiny')}/runs"
    page.goto(f"{runs}/{run}{tab}?workflowType=machine_learning")
    for text in shown:
        expect(page.get_by_text(text).first).to_be_visible()
    shot(f"mlflow_{stage or 'parent'}")


def test_the_registry_names_the_checkpoints_of_the_complete_run(place, page, finished):
    page.goto(f"{place.mlflow_url}/#/models/klear-tiny")
    for alias in ("sft", "math_rl", "code_rl", "last", "best"):
        expect(page.get_by_text(f"@ {alias}", exact=True).first).to_be_visible()
    expect(page.get_by_text(re.compile("^sft · learning_rate")).first).to_be_visible()
    assert place.python("-c", LOAD, place.mlflow_url).split()[-1] == "Qwen3ForCausalLM"


def test_nothing_of_the_report_is_cut_off_on_a_phone(
    place: Cockpit, page: Page, finished: Ended, shot
) -> None:
    report = max(place.store.glob("report/*/report.html"), key=lambda path: path.stat().st_mtime)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"file://{report}")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shot("report_phone")
    page.set_viewport_size({"width": 1440, "height": 900})


RUN_TABS = ("logs", "task-runs", "artifacts", "details", "parameters", "job-variables")


def test_a_secret_is_in_no_page_no_log_and_no_manifest(place, page, keys, finished):
    """Of two teachers one refuses its key, and repeats it in the refusal."""

    def choose(*_: object) -> str | tuple[int, str]:
        key = teacher.bodies[-1]["key"].removeprefix("Bearer ")
        message = {"error": {"message": f"Incorrect API key: {key}", "code": "invalid_api_key"}}
        return (401, json.dumps(message)) if key == keys["block"] else ""

    place.save_secret("teacher-key", keys["block"])
    with serving(choose, say=lambda _: "<think>\n\n</think>\n\n\\boxed{1}") as teacher:
        accepted = ask(place, teacher, 1, api_key_env="OPENAI_API_KEY")
        refused = ask(place, teacher, 2, api_key_block="teacher-key")
        assert place.ended(accepted)["state_name"] == "Completed"
        assert place.ended(refused)["state_name"] == "Failed"
        assert {body["key"] for body in teacher.bodies} == {f"Bearer {k}" for k in keys.values()}
    for run in (accepted, refused):
        shown = all_of(page, place, run)
        assert teacher.url in shown
        assert not [name for name, key in keys.items() if key in shown]
    for path in glob(f"{place.home}/**", recursive=True, include_hidden=True):
        content = b""
        with suppress(OSError):  # a folder, or a file that went meanwhile
            content = Path(path).read_bytes()
        assert not [name for name, key in keys.items() if key.encode() in content], path


def ask(place: Cockpit, teacher: Endpoint, samples: int, **key: str) -> str:
    """A run of the profile up to its distillation, by this teacher."""
    engine = {"kind": "openai", "model": MODEL, "base_url": teacher.url, **key}
    changes = f"distill.samples_per_prompt={samples}\ndistill.engine={json.dumps(engine)}"
    return place.submit("tiny", changes=changes, until="distill")


def all_of(page: Page, place: Cockpit, flow_run: str) -> str:
    """What every tab of a run's page shows, and all that Prefect's server said meanwhile."""
    texts: list[str] = []

    def keep(request: Request) -> None:
        if "/api/" in request.url and (response := request.response()):
            texts.append(response.text())

    page.on("requestfinished", keep)
    try:
        run = visit(page, place, flow_run)
        for tab in RUN_TABS:
            run.tab(tab)
            page.wait_for_load_state("networkidle")
            texts.append(page.content())
    finally:
        page.remove_listener("requestfinished", keep)
    return "\n".join(texts)
