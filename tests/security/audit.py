"""Known vulnerabilities of the locked packages (`make audit`).

    python tests/security/audit.py PIP_AUDIT LOCK …

Exit codes: 0 none known, 1 some are (each is printed), 3 the advisories could not be read, so that
nothing is known. A package that the service does not know is named and is no failure by itself.
"""

import json
import subprocess
import sys
from pathlib import Path

CLEAN, VULNERABLE, UNREACHABLE = 0, 1, 3
OPTIONS = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")


def audit(pip_audit: str, lock: Path) -> tuple[int, str]:
    """The exit code for one lock, and what to say about it."""
    command = [pip_audit, "-r", str(lock), *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return UNREACHABLE, f"{lock.name}: nothing was checked: {last}"
    unknown = [p["name"] for p in packages if "skip_reason" in p]
    if len(unknown) == len(packages):
        return UNREACHABLE, (
            f"{lock.name}: nothing was checked: the advisory service knows none of the packages, "
            "so it is out of reach (a registry mirror has no advisories); run this where "
            "https://pypi.org can be reached"
        )
    lines = [
        f"{p['name']} {p['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'none'}"
        for p in packages
        for v in p.get("vulns", ())
    ]
    code, read = VULNERABLE if lines else CLEAN, len(packages) - len(unknown)
    lines.append(f"{lock.name}: {read} packages checked, {len(lines)} known vulnerabilities")
    if unknown:
        lines.append(f"{lock.name}: not known to the service: {', '.join(unknown)}")
    return code, "\n".join(lines)


def main(pip_audit: str, *locks: str) -> int:
    audits = [audit(pip_audit, Path(lock)) for lock in locks]
    print(*(text for _, text in audits), sep="\n")
    return max(code for code, _ in audits)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
