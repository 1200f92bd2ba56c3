"""The pages of the MLflow UI (3.17) on which runs are browsed and compared."""

import re

from playwright.sync_api import Locator, Page, expect

SCROLL_ON = """cell => {
    let box = cell.parentElement
    while (!(box.scrollHeight > box.clientHeight && getComputedStyle(box).overflowY != 'visible'))
        box = box.parentElement
    box.scrollTop += 200
}"""


class RunsPage:
    """The table of an experiment's runs."""

    def __init__(self, page: Page, url: str, experiment: str) -> None:
        self._page = page
        page.goto(f"{url}/#/experiments/{experiment}/runs?workflowType=machine_learning")
        close_assistant(page)

    def select(self, run: str) -> None:
        """Tick the box before a run."""
        link = self._page.locator(f"a[href*='{run}']")
        expect(link.first).to_be_visible()
        row = self._page.get_by_role("row").filter(has=link)
        row.get_by_role("checkbox", name=re.compile("row selection")).click()

    def compare(self) -> "ComparePage":
        self._page.get_by_role("button", name="Compare", exact=True).click()
        return ComparePage(self._page)


class ComparePage:
    """Runs beside each other: parameters, metrics, tags."""

    def __init__(self, page: Page) -> None:
        self._page = page
        expect(page.get_by_text(re.compile(r"Comparing \d+ Runs"))).to_be_visible()

    def row(self, name: str) -> Locator:
        """The row that begins with this name: a fact of the runs, a parameter or a tag."""
        return self._page.get_by_role("row").filter(has=self._page.get_by_text(name, exact=True))

    def only_different_parameters(self) -> None:
        """The switch "Show diff only" of the first of the three tables."""
        self._page.get_by_role("switch").first.click()

    def scroll_to_metric(self, name: str) -> None:
        """Metrics are in a list of their own, of which only what is in sight exists."""
        metrics = self._page.locator("a[href*='/metric']")
        wanted = self._page.get_by_role("link", name=name, exact=True)
        metrics.first.scroll_into_view_if_needed()
        for _ in range(200):
            if wanted.count():
                break
            metrics.last.evaluate(SCROLL_ON)
            self._page.wait_for_timeout(100)
        expect(wanted).to_be_visible()


def close_assistant(page: Page) -> None:
    """The panel that MLflow opens at the first visit."""
    close = page.get_by_role("button", name="Close", exact=True)
    expect(page.get_by_role("link", name="Runs").first).to_be_visible()
    if close.count():
        close.first.click()
