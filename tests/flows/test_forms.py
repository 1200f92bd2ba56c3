"""What a field of a form does that is left alone, changed or wrong; whose results a stage takes;
the rule that crashes silent runs."""

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.schema_tools.validation import validate

from klear.configs import loading
from klear.configs.loading import load_profile, read_profile
from klear.configs.machine import Machine
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.loss import CISPO, GRPO
from klear.flows.cli.run import Options, parameters_of
from klear.flows.cockpit import flows, registration
from klear.flows.cockpit.forms import SETS, overrides_of, read_request, values_of
from klear.flows.cockpit.registration import crash_silent, register_automation
from klear.flows.one_stage import chosen, idle_lines
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
MOST_FIELDS = 20  # of a form that opens at once and is seen whole
FORMS = {form.name: form for form in registration.forms(Machine(home=Path("/nowhere")))}


@pytest.mark.parametrize("profile", [name for name in FORMS if name not in ("stage", "ablation")])
def test_a_form_that_is_left_alone_is_the_profile(profile: str) -> None:
    form = FORMS[profile]
    schema = flows.pipeline.parameters.model_dump()
    assert len(schema["properties"]) <= MOST_FIELDS
    assert all(field.get("description") for field in schema["properties"].values())
    assert not [name for name, field in schema["properties"].items() if "anyOf" in field]
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
    assert paid.name == request.name == "tiny-seed1 · sft.epochs=2, rl_math.loss=grpo"
    for stage in (paid.settings.distill, paid.settings.sample):
        assert stage.engine.runtime.approved_cost == 30


def test_a_run_reads_its_profile_once_for_its_name_and_its_work(monkeypatch) -> None:
    """Also a form that is not the profile's own is refused."""
    files: list[Path] = []
    read = loading.read_yaml
    monkeypatch.setattr(loading, "read_yaml", lambda path: files.append(path) or read(path))
    run = Mock(id="id", parameters={"profile": "tiny", "changes": "", "seed": 3, "k": 2})
    run.name = "puzzling-orca"
    monkeypatch.setattr(flows, "flow_run", run)
    monkeypatch.setattr(flows, "run_pipeline", lambda request, *_: request.name)
    name = flows._pipeline_name()
    assert flows.pipeline.fn(**run.parameters) == name
    assert name.startswith("tiny-seed3 · evaluate.protocols")
    assert len(files) == 1
    monkeypatch.setattr(flows, "is_worker_run", lambda: True)
    monkeypatch.setattr(flows, "deployment", SimpleNamespace(name="paper"))
    with pytest.raises(ConfigError, match="this form begins with the values of paper"):
        flows.pipeline.fn(**run.parameters)


def a_run(root: Path, name: str, seed: int = 0) -> Manifest:
    """What a complete run left: a model, its score, its report. Keys begin with the name."""
    publish(root, "sft", f"{name}-sft")
    publish(root, "evaluate_sft", f"{name}-eval", inputs=(("sft", f"{name}-sft"),))
    results = (("sft", f"{name}-sft"), ("evaluate_sft", f"{name}-eval"))
    report = publish(root, "report", f"{name}-report", inputs=results)
    ids = {"name": f"tiny-{name}", "flow_run": f"flow-{name}", "mlflow_run": f"mlflow-{name}"}
    run = CompleteRun(profile="tiny", seed=seed, report=report.key, **ids)
    note_complete(Store(root), run)
    for path in root.glob(f"*/{name}-*"):
        (path / "rows").write_bytes(bytes(1000))
    return report


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
    with pytest.raises(ConfigError, match=r"no run of tiny with seed 5 is complete .*tiny-two"):
        resolve_run(store, LATEST, "tiny", 5)
    with pytest.raises(ConfigError, match=r"^tiny-one has no base, only"):
        chosen(("base",), "tiny-one", TINY, "", store)


def test_a_change_that_does_nothing_in_the_stage_is_refused() -> None:
    both = "sft.epochs=0.6\nsft.packing=false\nevaluate.sampling.max_tokens=32\nstall_minutes=5"
    tiny = read_profile("tiny")
    assert idle_lines(tiny, "evaluate_sft", both.split()) == ["sft.epochs=0.6"]
    falling = ["sft.learning_rate=1e-2", "sft.min_learning_rate=5e-3"]  # right together only
    assert not idle_lines(tiny, "sft", falling)


def test_what_does_not_belong_together_is_named(tmp_path: Path) -> None:
    a_run(tmp_path, "one")
    a_run(tmp_path, "two")
    store = Store(tmp_path)
    taken = chosen(("sft", "evaluate_sft"), "tiny-one", TINY, "evaluate_sft=two", store)
    (line,) = provenance_conflicts(store, [*taken.values()])
    assert line == "sft/one-sft and sft/two-sft behind evaluate_sft/two-eval"
    assert not provenance_conflicts(
        store, [*chosen(("sft", "evaluate_sft"), LATEST, TINY, "", store).values()]
    )


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
