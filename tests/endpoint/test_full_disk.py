"""`klear eval` on a small disk of its own (tmpfs) that fills up: one line, and all that was paid
for is kept."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES, PROBLEMS, ANSWER_BYTES, CONCURRENCY = 1 << 20, 40, 10_000, 4
SCRIPT = """
dd if=/dev/zero of=$DISK/filler bs=1024 count=$FILLER_KB status=none
"$@" >$SEEN/first.out 2>$SEEN/first.err; echo $? >$SEEN/first.code
cat $DISK/home/store/.work/eval_model/*/.resume/samples.jsonl >$SEEN/kept.jsonl 2>$SEEN/none
rm $DISK/filler
"$@" >$SEEN/second.out 2>$SEEN/second.err; echo $? >$SEEN/second.code
cp $DISK/home/store/eval_model/*/results.json $SEEN/
"""
"""Evaluate on a nearly full disk, make room, evaluate again."""


def long_answer(prompt: str) -> str:
    return f"<think>\n{prompt[8] * ANSWER_BYTES}\n</think>\n\n\\boxed{{1}}"


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(endpoint_of, tmp_path):
    """Room for a third of the answers."""
    seen, disk, sums = tmp_path / "seen", tmp_path / "disk", tmp_path / "sums.jsonl"
    seen.mkdir()
    disk.mkdir()
    rows = [{"question": f"What is {i} + 1?", "gt": "1"} for i in range(PROBLEMS)]
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bwrap = shutil.which("bwrap")
    assert bwrap, "apt install bubblewrap"
    small = [bwrap, "--dev-bind", "/", "/", "--size", str(DISK_BYTES), "--tmpfs", str(disk)]
    environment = {"DISK": str(disk), "SEEN": str(seen), "FILLER_KB": "700",
                   "KLEAR_HOME": str(disk / "home")}  # fmt: skip
    with endpoint_of(say=long_answer, latency_s=0.01) as endpoint:
        command = [sys.executable, "-m", "klear.flows.cli.main", "eval", endpoint.url,
                   "--bench", str(sums),
                   "--set", f"engine.runtime.concurrency={CONCURRENCY}"]  # fmt: skip
        done = subprocess.run(
            [*small, "sh", "-c", SCRIPT, "sh", *command],
            cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        )  # fmt: skip
    said = (seen / "first.err").read_text()
    assert (seen / "first.code").read_text().strip() == "1", said + done.stderr
    line = said.strip().splitlines()[-1]
    assert "No space left on device, so no answer can be kept: make room and run again" in line
    assert "Traceback" not in said
    kept = {json.loads(x)["problem_id"] for x in (seen / "kept.jsonl").read_text().splitlines()}
    assert PROBLEMS // 5 < len(kept) < PROBLEMS
    assert (seen / "second.code").read_text().strip() == "0", (seen / "second.err").read_text()
    (result,) = json.loads((seen / "results.json").read_text())
    assert (result["samples"], result["avg"]) == (PROBLEMS, 1.0)
    # Only what was on its way when the disk was full had to be asked for twice.
    assert endpoint.attempts.total() <= PROBLEMS + CONCURRENCY
