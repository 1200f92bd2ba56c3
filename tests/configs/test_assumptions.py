"""What a plan assumes was measured by a script that is here, or says why it was not."""

import re
from pathlib import Path

import pytest

from configs.assumptions import UNMEASURED, Assumptions

BENCHES = Path(__file__).parents[1] / "bench"
FIELDS = Assumptions.model_fields
SPEEDS = [name for name in FIELDS if re.search(r"_(rate|mfu|second|core)$", name)]
OF_ENGINES_THAT_ONLY_READ = "rows_per_second"


@pytest.mark.parametrize("name", [n for n in SPEEDS if n != OF_ENGINES_THAT_ONLY_READ])
def test_a_rate_names_the_script_that_measured_it_or_is_said_to_be_unmeasured(name):
    scripts = re.findall(r"\w+\.py", FIELDS[name].description or "")
    assert bool(scripts) != (name in UNMEASURED)
    assert all((BENCHES / script).is_file() for script in scripts)
    assert not scripts or "measured" in (FIELDS[name].description or "")


def test_what_was_never_measured_says_so_and_why():
    assert set(UNMEASURED) <= set(FIELDS)
    assert all(re.match(r"not measured(, for|: it is)", reason) for reason in UNMEASURED.values())
