"""`make audit` tells "none known" from "nobody could be asked"."""

from pathlib import Path

from security.audit import CLEAN, UNREACHABLE, VULNERABLE, audit, verdict

SAFE = {"name": "a", "version": "1", "vulns": []}
UNSAFE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found on PyPI"}


def test_a_known_vulnerability_fails_and_names_the_fix():
    code, said = verdict("lock", [SAFE, UNSAFE])
    assert code == VULNERABLE
    assert said.splitlines()[0] == "b 2: PYSEC-1, fixed in 3"


def test_none_known_is_clean_and_says_how_many_were_checked():
    assert verdict("lock", [SAFE, SKIPPED]) == (
        CLEAN,
        "lock: 1 packages checked, 0 known vulnerabilities\nlock: not known to the service: c",
    )


def test_a_service_that_knows_nothing_is_no_clean_bill():
    code, said = verdict("lock", [SKIPPED, SKIPPED])
    assert code == UNREACHABLE
    assert "nothing was checked" in said


def test_a_program_that_fails_is_no_clean_bill(tmp_path: Path):
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 1\n")
    program.chmod(0o755)
    assert audit(str(program), Path("lock")) == (
        UNREACHABLE,
        "lock: nothing was checked: no route to host",
    )
