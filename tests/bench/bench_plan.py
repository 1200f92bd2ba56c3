"""CPU seconds to plan 200 stages in a store of 5,000 results, against the limit of one second.

python tests/bench/bench_plan.py
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.tasks.test_plan_scale import STAGES, fill, plan_all

EACH = 25
LIMIT_S = 1.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root, EACH)
        ours = min(plan_all(root)[1] for _ in range(3))
    line = {
        "bench": "plan",
        "ours": round(ours, 3),
        "peer": {"limit": LIMIT_S},
        "unit": "CPU s",
        "ratio": round(LIMIT_S / ours, 2),
        "setup": f"{STAGES} stages, {STAGES * EACH} results in the store, best of 3",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
