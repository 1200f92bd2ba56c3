"""The files a training process writes for its parent."""

import json

from training.layout import MetricsFile, ProgressFile


def steps(out):
    lines = (out / "logs/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_resumed_run_drops_the_lines_after_its_checkpoint(tmp_path):
    metrics = MetricsFile(tmp_path)
    for step in (10, 20, 30):
        metrics.append(step, {"loss": 1.0})
    MetricsFile(tmp_path, after_step=20).append(30, {"loss": 2.0})
    assert steps(tmp_path) == [10, 20, 30]
    last = (tmp_path / "logs/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["metrics"] == {"loss": 2.0}


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    MetricsFile(tmp_path).append(1, {"loss": 1.0})
    with (tmp_path / "logs/metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "ti')
    MetricsFile(tmp_path, after_step=5)
    assert steps(tmp_path) == [1]


def test_numbers_that_are_not_finite_are_left_out_since_json_has_none(tmp_path):
    MetricsFile(tmp_path).append(1, {"loss": float("nan"), "x": float("inf"), "y": 2.0})
    (line,) = (tmp_path / "logs/metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["metrics"] == {"y": 2.0}


def test_progress_is_written_rarely_but_always_at_the_end(tmp_path):
    progress = ProgressFile(tmp_path)
    path = tmp_path / ".resume/progress.json"
    progress.report(1, 100, "first")
    progress.report(2, 100, "too soon")
    assert json.loads(path.read_text()) == {"done": 1, "total": 100, "note": "first"}
    progress.report(100, 100, "end")
    assert json.loads(path.read_text())["note"] == "end"


def test_a_note_of_any_process_leaves_the_progress_that_is_known(tmp_path):
    ProgressFile(tmp_path).report(3, 10, "loss 0.5")
    ProgressFile(tmp_path).note("waiting")
    told = json.loads((tmp_path / ".resume/progress.json").read_text())
    assert told == {"done": 3, "total": 10, "note": "waiting"}
    ProgressFile(tmp_path / "new").note("waiting")
    assert (tmp_path / "new/.resume/progress.json").exists()
