"""What a field of a form does that is left alone, changed or wrong; whose results a stage takes;
the rule that crashes silent runs."""

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.schema_tools.validation import validate

from klear.configs import loading
from klear.configs.loading import Request, load_profile, read_profile
from klear.configs.machine import Machine
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.loss import CISPO, GRPO
from klear.flows import one_stage
from klear.flows.cli.run import Options, parameters_of
from klear.flows.cockpit import flows, registration
from klear.flows.cockpit.forms import SETS, overrides_of, read_request, values_of
from klear.flows.cockpit.names import is_made_up
from klear.flows.cockpit.registration import crash_silent, register_automation
from klear.flows.dag import build_dag
from klear.flows.one_stage import choose_inputs, chosen, idle_lines
from klear.flows.run import lines_by_stage
from klear.tasks.store import lineage
from klear.tasks.store.lineage import (
    LATEST,
    CompleteRun,
    note_complete,
    provenance_conflicts,
    resolve_run,
)
from klear.tasks.store.store import Manifest, Store
from tests.tasks.manifests_by_hand import publish

TINY = load_profile("tiny")
MOST_FIELDS = 21  # of a form that opens at once and is seen whole
FORMS = {form.name: form for form in registration.forms(Machine(home=Path("/nowhere")))}


@pytest.mark.parametrize("profile", [name for name in FORMS if name not in ("stage", "ablation")])
def test_a_form_that_is_left_alone_is_the_profile(profile: str) -> None:
    form = FORMS[profile]
    schema = flows.pipeline.parameters.model_dump()
    assert len(schema["properties"]) <= MOST_FIELDS
    assert all(field.get("description") for field in schema["properties"].values())
    assert not [name for name, field in schema["properties"].items() if "anyOf" in field]
    numbers = [field for field in schema["properties"].values() if field["type"] == "number"]
    assert not [field for field in numbers if "minimum" in field], "whole steps in the updated UI"
    validate(form.parameters, schema, raise_on_error=True)  # as the server does
    fields = {name: form.parameters.get(name) for name in SETS}
    assert read_request(profile, fields, "", 0).settings == load_profile(profile, ["seed=0"])
    assert read_request(profile).settings == load_profile(profile)  # empty fields


def test_a_field_that_is_changed_sets_all_that_it_is_for_and_a_line_comes_after_it() -> None:
    changed = {**values_of(TINY), "loss": "cispo", "k": 2, "sources": ["countdown", "countdown_rl",
               "by_example", "by_example_rl"]}  # fmt: skip
    lines = "rl_code.loss=grpo\n\n# a remark\nsft.epochs=3"
    settings = read_request("tiny", changed, lines, 7).settings
    assert (settings.rl_math.loss, settings.rl_code.loss) == (CISPO(), GRPO())
    assert {protocol.k for protocol in settings.evaluate.protocols} == {2}
    assert (settings.sft.epochs, settings.seed) == (3, 7)
    assert settings.collect == TINY.collect  # all are chosen, in whatever order
    for name in ("rl_math", "rl_code"):  # each keeps its own steps, rates and all else
        ours, theirs = getattr(settings, name), getattr(TINY, name)
        assert ours.model_copy(update={"loss": theirs.loss}) == theirs
    paper = load_profile("paper")
    fewer = read_request("paper", {**values_of(paper), "k": 2}).settings.evaluate.protocols
    assert fewer == tuple(p.model_copy(update={"k": 2}) for p in paper.evaluate.protocols)
    with pytest.raises(ConfigError, match="no_such_source"):
        read_request("tiny", {"sources": ["countdown", "no_such_source"]})


def test_a_command_is_the_form_with_its_options_as_changes() -> None:
    options = Options(("sft.epochs=2", "rl_math.loss=grpo"), seed=1, approve_cost=30)
    request = options.request("tiny")
    parameters = parameters_of("tiny", request, options)
    fields = {name: parameters[name] for name in values_of(TINY)}
    overrides = overrides_of(TINY, fields, parameters["changes"])
    assert overrides[:2] == ["sft.epochs=2", "rl_math.loss=grpo"]
    paid = read_request("tiny", fields, parameters["changes"], parameters["seed"])
    assert paid.name == request.name == "sft.epochs=2, rl_math.loss=grpo · tiny-seed1"
    assert flows.name_of("pipeline", parameters) == request.name
    assert flows.name_of("pipeline", {**parameters, "until": "sft"}) == f"until sft · {paid.name}"
    for stage in (paid.settings.distill, paid.settings.sample):
        assert stage.engine.runtime.approved_cost == 30
    fallback = "distill.fallback={kind: openai, model: m, base_url: http://127.0.0.1:9/v1}"
    options = Options((fallback,), approve_cost=30)
    changes = parameters_of("open_traces", options.request("open_traces"), options)["changes"]
    assert "distill.fallback.runtime.approved_cost=30" in changes.splitlines()


def test_a_run_reads_its_profile_once_for_its_name_and_its_work(monkeypatch) -> None:
    """Also a form that is not the profile's own is refused."""
    files: list[Path] = []
    read = loading.read_yaml
    monkeypatch.setattr(loading, "read_yaml", lambda path: files.append(path) or read(path))
    run = Mock(id="id", parameters={"profile": "tiny", "changes": "", "seed": 3, "k": 2})
    run.name = "puzzling-orca"
    monkeypatch.setattr(flows, "flow_run", run)
    monkeypatch.setattr(flows, "run_pipeline", lambda request, *_: request.name)
    name = flows._name_of_this_run()
    assert flows.pipeline.fn(**run.parameters) == name
    assert name.startswith("evaluate.protocols")
    assert len(files) == 1
    monkeypatch.setattr(flows, "is_worker_run", lambda: True)
    monkeypatch.setattr(flows, "deployment", SimpleNamespace(name="paper"))
    state: Any = flows.pipeline.fn(**run.parameters)  # no traceback
    assert (state.type, state.name) == (StateType.FAILED, "Failed")
    assert "this form begins with the values of paper" in state.message


@pytest.mark.parametrize(("changes", "is_refused"), [
    ("", False), ("sft.epochs=2\n\n# why\n  collect.sources+=[{use: mine}]\r\n", False),
    ("foo", True), ("sft.epochs=2\nfoo", True), ("=2", True),
])  # fmt: skip
def test_a_line_that_is_no_setting_is_refused_when_the_form_is_submitted(changes, is_refused):
    schema = flows.pipeline.parameters.model_dump()
    parameters = {**FORMS["tiny"].parameters, "changes": changes}
    errors = validate(parameters, schema, raise_on_error=False)
    assert bool(errors) == is_refused
    assert validate({**parameters, "beta1": -0.1, "changes": ""}, schema, raise_on_error=False)


@pytest.mark.parametrize("name", [
    "puzzling-orca", "beta3-canis-majoris-a", "Fantastic-Alabai", "Awesome-Vicuña", ""
])  # fmt: skip
def test_a_name_that_either_ui_makes_up_is_not_a_persons(name: str) -> None:
    assert is_made_up(name)
    assert not is_made_up("second-try")


def test_what_a_person_reads_of_a_form_has_no_lines_of_a_file() -> None:
    for name, form in FORMS.items():
        assert "Args:" not in (form.description or "")
        assert "\n#" not in (form.description or "")
        if name not in ("stage", "ablation"):
            assert "\n\nNeeds " in (form.description or "")
    assert "Needs no GPU. " in (FORMS["tiny"].description or "")
    assert "Needs 1 H100; the weights of Qwen/" in (FORMS["single_gpu"].description or "")
    # Quick run of an ablation starts nothing
    assert flows.ablation.parameters.model_dump()["required"] == ["name"]
    assert not FORMS["ablation"].parameters


CISPO_RUN = "rl_math.loss=cispo", "rl_code.loss=cispo"


def test_results_that_are_not_the_profiles_are_named_and_mixed_only_if_asked(monkeypatch, tmp_path):
    """The last complete run was CISPO; the profile says GPPO."""
    dag = build_dag(load_profile("tiny", CISPO_RUN))
    for stage, call in dag.items():
        inputs = tuple((name, f"{name}-key") for name in call.inputs)
        report = publish(tmp_path, stage, f"{stage}-key", settings=call.settings, inputs=inputs)
    name = "rl_math.loss=cispo, rl_code.loss=cispo · tiny-seed0"
    run: Any = {"name": name, "flow_run": "flow", "mlflow_run": "m", "overrides": CISPO_RUN}
    store = Store(tmp_path)
    note_complete(store, CompleteRun(profile="tiny", seed=0, report=report.key, **run))
    monkeypatch.setattr(one_stage, "open_store", lambda _: store)

    evaluated = choose_inputs("tiny", "evaluate_rl_code", [], LATEST, "", 0)
    assert "rl_code.loss.name: cispo → gppo" in evaluated.foreign
    report_of_all = choose_inputs("tiny", "report", [], "report/report-key", "", 0)
    assert {line.partition(".")[0] for line in report_of_all.foreign} == {"rl_math", "rl_code"}
    assert not evaluated.unasked
    assert f"[{name.replace('_', chr(92) + '_')}](url/runs/flow-run/flow)" in (
        evaluated.described("url")
    )
    parameters = {"profile": "tiny", "stage": "evaluate_rl_code"}
    assert flows.name_of("stage", parameters) == f"evaluate_rl_code · as of {name} · tiny-seed0"
    trained = choose_inputs("tiny", "rl_code", [], LATEST, "", 0)
    assert "rl_code.loss.name: cispo → gppo" in trained.unasked
    flags = {"mixed": False, "seed": 0, "force": False}
    with pytest.raises(ConfigError, match=r"has other settings: rl_code.loss.name: cispo → gppo"):
        one_stage.run_stage("tiny", "rl_code", [], LATEST, "", **flags)
    # what `klear rerun` and the link on the stage's page fill in
    request = Request.from_profile(read_profile("tiny"), CISPO_RUN)
    changes = lines_by_stage(request)
    assert changes == {"rl_math": ["rl_math.loss=cispo"], "rl_code": ["rl_code.loss=cispo"]}
    again = choose_inputs("tiny", "rl_code", changes["rl_code"], "rl_code/rl_code-key", "", 0)
    assert not again.unasked
    assert {m.key for m in again.manifests.values()} == {"rl_math-key", "filter_rl-key"}


def a_run(root: Path, name: str, seed: int = 0) -> Manifest:
    """What a complete run left: a model, its score, its report. Keys begin with the name."""
    publish(root, "sft", f"{name}-sft")
    publish(root, "evaluate_sft", f"{name}-eval", inputs=(("sft", f"{name}-sft"),))
    results = (("sft", f"{name}-sft"), ("evaluate_sft", f"{name}-eval"))
    report = publish(root, "report", f"{name}-report", inputs=results)
    ids: Any = {"name": f"tiny-{name}", "flow_run": f"flow-{name}", "mlflow_run": f"mlflow-{name}"}
    run = CompleteRun(profile="tiny", seed=seed, report=report.key, **ids)
    note_complete(Store(root), run)
    for path in root.glob(f"*/{name}-*"):
        (path / "rows").write_bytes(bytes(1000))
    return report


def test_a_crash_while_a_run_is_noted_as_complete_costs_that_note_alone(tmp_path):
    a_run(tmp_path, "one")
    path = tmp_path / lineage.COMPLETE
    path.write_bytes(path.read_bytes() + '{"profile":"tiny","name":"a ·'.encode()[:-1])
    assert [run.name for run in lineage.complete_runs(Store(tmp_path))] == ["tiny-one"]
    a_run(tmp_path, "two")
    names = [run.name for run in lineage.complete_runs(Store(tmp_path))]
    assert names == ["tiny-two", "tiny-one"]


def test_the_inputs_of_a_stage_are_those_of_one_run_the_last_unless_another_is_named(tmp_path):
    first, last = a_run(tmp_path, "one"), a_run(tmp_path, "two")
    a_run(tmp_path, "other", seed=1)
    store = Store(tmp_path)
    assert resolve_run(store, LATEST, "tiny", 0) == last
    publish(tmp_path, "sft", "trial")
    assert lineage.find_named(store, "sft")[0].key == "other-sft"  # not that of the trial
    for which in ("tiny-one", "flow-one", "mlflow-one", "report/one"):
        assert resolve_run(store, which, "tiny", 0) == first
    taken = chosen(("sft", "evaluate_sft"), "tiny-one", TINY, "", store)
    assert [m.key for m in taken.values()] == ["one-sft", "one-eval"]
    other = chosen(("sft", "evaluate_sft"), "tiny-one", TINY, "evaluate_sft=two", store)
    (line,) = provenance_conflicts(store, [*other.values()])
    assert line == "sft/one-sft and sft/two-sft behind evaluate_sft/two-eval"
    assert not provenance_conflicts(store, [*taken.values()])
    with pytest.raises(ConfigError, match="there is no base/abcdef"):
        resolve_run(store, "base/abcdef", "tiny", 0)
    with pytest.raises(ConfigError, match=r"no run of tiny with seed 5 is complete .*tiny-two"):
        resolve_run(store, LATEST, "tiny", 5)
    with pytest.raises(ConfigError, match=r"^tiny-one has no base, only"):
        chosen(("base",), "tiny-one", TINY, "", store)


def test_a_change_that_does_nothing_in_the_stage_is_refused() -> None:
    both = "sft.epochs=0.6\nsft.packing=false\nevaluate.sampling.max_tokens=32\nstall_minutes=5"
    tiny = read_profile("tiny")
    request = Request.from_profile(tiny, both.split())
    assert idle_lines(request, "evaluate_sft") == ["sft.epochs=0.6"]
    falling = ["sft.learning_rate=1e-2", "sft.min_learning_rate=5e-3"]  # right together only
    assert not idle_lines(Request.from_profile(tiny, falling), "sft")


def test_every_end_of_a_run_ends_the_wait_for_its_next_heartbeat_and_no_end_is_changed(tmp_path):
    rule = crash_silent(Machine(home=tmp_path).zombie_minutes)
    assert isinstance(rule.trigger, EventTrigger)
    ends = [s().name for s in (Completed, Failed, Cancelled, Crashed)]
    ends.append("TimedOut")  # what Prefect calls the failure of a run past its time limit
    assert {f"prefect.flow-run.{name}" for name in ends} <= set(rule.trigger.expect)
    assert rule.trigger.within >= timedelta(minutes=30)  # it outlives an outage of the server
    (action,) = rule.actions
    assert isinstance(action, ChangeFlowRunState)
    assert (action.state, action.force) == (StateType.CRASHED, False)


def test_what_is_switched_off_stays_off(monkeypatch):
    rule = crash_silent(30)
    switched_off = {**rule.model_dump(mode="json"), "id": uuid4(), "enabled": False}
    client = Mock()
    automations = {rule.name: [Automation.model_validate(switched_off)]}
    client.read_automations_by_name.side_effect = lambda name: automations.get(name, [])
    monkeypatch.setattr(registration, "get_client", lambda **_: nullcontext(client))
    register_automation(crash_silent(99))
    client.create_automation.assert_not_called()
    client.update_automation.assert_called_once()
    _, new = client.update_automation.call_args.args
    assert (new.enabled, new.trigger.within) == (False, timedelta(minutes=99))
