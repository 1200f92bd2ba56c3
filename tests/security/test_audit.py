"""`make audit` tells "none known" from "nobody could be asked"."""

import json
from pathlib import Path

import pytest
from security.audit import CLEAN, UNREACHABLE, VULNERABLE, audit

SAFE = {"name": "a", "version": "1", "vulns": []}
UNSAFE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([SAFE, UNSAFE], VULNERABLE, "b 2: PYSEC-1, fixed in 3\n"),
        ([SAFE, UNKNOWN], CLEAN, "1 packages checked, 0 known vulnerabilities"),
        ([SAFE, UNKNOWN], CLEAN, "not known to the service: c"),
        ([UNKNOWN, UNKNOWN], UNREACHABLE, "nothing was checked"),
        (None, UNREACHABLE, "nothing was checked: no route to host"),
    ],
)
def test_the_exit_code_tells_what_is_known(tmp_path: Path, packages, code, said):
    program, found = tmp_path / "pip-audit", tmp_path / "found.json"
    found.write_text("" if packages is None else json.dumps({"dependencies": packages}))
    program.write_text(f"#!/bin/sh\ncat {found}\necho 'no route to host' >&2\nexit 1\n")
    program.chmod(0o755)
    result, text = audit(str(program), Path("lock"))
    assert (result, said in text) == (code, True)
