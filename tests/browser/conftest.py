"""Chromium, real servers, and where screenshots go (SHOTS=FOLDER keeps them)."""

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # the pages and the cockpit are modules beside this

from cockpit import Cockpit
from playwright.sync_api import Page, expect, sync_playwright

PATIENCE_MS = 180_000  # of one step on a page: the machine may do other things too
COLOURS = 128  # of a screenshot: a fifth of its bytes, and every letter still sharp
Shot = Callable[[str], None]


@pytest.fixture(scope="module")
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    return program


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    """Two secrets that exist in this test only: an environment variable and a Prefect block."""
    return {"OPENAI_API_KEY": f"sk-{secrets.token_hex(24)}", "block": f"sk-{secrets.token_hex(24)}"}


@pytest.fixture(scope="module")
def place(chromium, keys, tmp_path_factory):
    place = Cockpit(tmp_path_factory.mktemp("cockpit"), {"OPENAI_API_KEY": keys["OPENAI_API_KEY"]})
    try:
        place.klear("up")
        yield place
    finally:
        place.klear("down")


@pytest.fixture(scope="module")
def page(chromium: str, place: Cockpit) -> Iterator[Page]:
    """One window for the whole story. Ended with the module: Playwright holds the event loop."""
    expect.set_options(timeout=PATIENCE_MS)
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def shot(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Shot:
    """Keeps what the window shows as NAME.png."""
    chosen = os.environ.get("SHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)

    return take
