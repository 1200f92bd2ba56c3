"""One home with real servers and a worker for all tests of flows, and what one whole run left."""

import pytest
from home import ZOMBIE_MINUTES, Home


@pytest.fixture(scope="session")
def cockpit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cockpit")
    place = Home(
        folder,
        KLEAR_WORKER_LIMIT="2",
        KLEAR_GPU_SLOTS="1",
        KLEAR_FORM_PROFILE=str(folder / "small.yaml"),
        KLEAR_ZOMBIE_MINUTES=str(ZOMBIE_MINUTES),
    )
    place.klear("up")
    yield place
    place.klear("down")


@pytest.fixture(scope="session")
def first(cockpit: Home) -> str:
    """What the first whole run of the small profile printed."""
    return cockpit.run()
