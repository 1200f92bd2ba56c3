"""Known vulnerabilities of the locked packages (`make audit`).

    python tests/security/audit.py PIP_AUDIT LOCK …

Exit codes: 0 none known, 1 some are (each is printed), 3 the advisories could not be read, so that
nothing is known. A package that the service does not know is named and is no failure by itself.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CLEAN, VULNERABLE, UNREACHABLE = 0, 1, 3


def audit(pip_audit: str, lock: Path) -> tuple[int, str]:
    """The exit code for one lock, and what to say about it."""
    done = subprocess.run(
        [pip_audit, "-r", str(lock), "--no-deps", "--disable-pip", "--format", "json",
         "--progress-spinner", "off"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return UNREACHABLE, f"{lock.name}: nothing was checked: {last}"
    return verdict(lock.name, packages)


def verdict(lock: str, packages: Sequence[dict]) -> tuple[int, str]:
    """From pip-audit's list of packages: those it read about, and those it could not."""
    read = [p for p in packages if "skip_reason" not in p]
    lines = [
        f"{p['name']} {p['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'none'}"
        for p in read
        for v in p["vulns"]
    ]
    if not read:
        return UNREACHABLE, (
            f"{lock}: nothing was checked: the advisory service knows none of the "
            f"{len(packages)} packages, so it is out of reach (a registry mirror has no "
            "advisories); run this where https://pypi.org can be reached"
        )
    skipped = [p["name"] for p in packages if "skip_reason" in p]
    lines.append(f"{lock}: {len(read)} packages checked, {len(lines)} known vulnerabilities")
    if skipped:
        lines.append(f"{lock}: not known to the service: {', '.join(skipped)}")
    return VULNERABLE if any(p["vulns"] for p in read) else CLEAN, "\n".join(lines)


def main(pip_audit: str, *locks: str) -> int:
    worst = CLEAN
    for lock in locks:
        code, said = audit(pip_audit, Path(lock))
        print(said)
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
