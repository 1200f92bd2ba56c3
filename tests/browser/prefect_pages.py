"""The pages of the Prefect UI (3.7, its first design) that a person who runs klear goes through."""

import re
import time
from collections.abc import Mapping
from typing import Any

from playwright.sync_api import Locator, Page, Response, expect
from playwright.sync_api import TimeoutError as NotInTime

Schema = Mapping[str, Any]
MESSAGE_MS = 15_000  # longer than Prefect shows one
_PROPERTY = "div[contains(concat(' ', @class, ' '), ' schema-form-property ')]"
_LABEL = "span[contains(@class, 'schema-form-property__label')]"


def open_form(page: Page, url: str, name: str, schema: Schema) -> "Form":
    """Deployments → the one called `name` → Run → Custom run."""
    page.goto(f"{url}/deployments")
    page.get_by_placeholder("Search deployments").fill(name)
    page.get_by_role("link", name=name, exact=True).first.click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    return Form(page, schema)


class Form:
    """The form of a deployment. A field is found by its parameter, whatever its label: that is what
    the deployment's own schema says."""

    def __init__(self, page: Page, schema: Schema) -> None:
        self._page, self._schema = page, schema
        self._submit = page.get_by_role("button", name="Submit", exact=True)
        expect(self._submit).to_be_visible()

    def field(self, name: str) -> Locator:
        """The box of `sft_epochs`: its label, its description and its input."""
        title = self._schema["properties"][name]["title"]
        texts = " or ".join(f'normalize-space(.)="{t}"' for t in (title, f"{title} (Optional)"))
        header = f"./div[contains(@class, 'p-label__header')]//{_LABEL}[{texts}]"
        return self._page.locator(f"xpath=//{_PROPERTY}[{header}]")

    def number(self, name: str) -> Locator:
        return self.field(name).locator("input[type=number]")

    def choose(self, name: str, value: str) -> None:
        """By the keyboard: a list in headless Chromium is closed by the mouse."""
        chosen = self.field(name).locator(".p-select-button__control")
        chosen.press("Enter")
        self._page.keyboard.type(value)
        self._page.keyboard.press("ArrowDown")
        self._page.keyboard.press("Enter")
        expect(chosen).to_have_text(value)

    def start(self) -> "RunPage":
        """Submit, and follow the message's link to the run."""
        answer = submitted(self._page, self._submit)
        place, run = answer.url.partition("/api/")[0], answer.json()["id"]
        try:  # it is there twice, the last is on top
            self._page.get_by_text("View run").last.click(timeout=MESSAGE_MS)
        except NotInTime:  # it goes by itself, on a busy machine before one can click it
            self._page.goto(f"{place}/runs/flow-run/{run}")
        self._page.wait_for_url(f"**/runs/flow-run/{run}*")
        return RunPage(self._page)


def submitted(page: Page, submit: Locator) -> Response:
    """The new run. A person whose form meets a busy SQLite (503) presses again."""
    while True:
        with page.expect_response("**/create_flow_run") as answer:
            submit.click()
        if answer.value.status != 503:
            assert answer.value.ok, answer.value.text()
            return answer.value


class RunPage:
    """The page of one flow run."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.flow_run = page.url.partition("/flow-run/")[2].partition("?")[0]

    def shows(self, state: str) -> None:
        """Until the badge beside the run's name says so."""
        expect(self._page.locator(".state-badge").first).to_have_text(state)

    def tab(self, name: str) -> None:
        """`logs`, `task-runs`, `artifacts`, `parameters`, …"""
        self._page.locator(f"li.p-tab#{name}").click()

    def cancel(self) -> float:
        """Returns when it was confirmed, by the monotonic clock."""
        self._page.get_by_role("button", name="Cancel", exact=True).click()
        confirm = self._page.get_by_role("button", name="Confirm", exact=True)
        expect(confirm).to_be_visible()
        since = time.monotonic()
        confirm.click()
        return since

    def ask_for(self, what: str, confirmed_by: str = "Submit") -> None:
        """`Retry`, `Suspend` or `Resume`, and the dialog that it opens."""
        self._page.get_by_role("button", name=what, exact=True).click()
        dialog = self._page.locator(".p-modal")
        with self._page.expect_response(re.compile(f"/({what.lower()}|set_state)$")) as answer:
            dialog.get_by_role("button", name=confirmed_by, exact=True).click()
        assert answer.value.ok, answer.value.text()

    def copy(self, schema: Schema) -> Form:
        """The form again, with the parameters of this run."""
        self._page.locator(".p-icon-button-menu button").first.click()
        self._page.locator(".p-overflow-menu-item", has_text="Copy to new run").click()
        return Form(self._page, schema)

    def open_artifact(self, key: str) -> None:
        """Artifacts → the card called `key`."""
        self.tab("artifacts")
        named = self._page.get_by_text(key, exact=True)
        self._page.get_by_role("link", name=key).or_(named).last.click()
        self._page.wait_for_url("**/artifacts/artifact/*")
