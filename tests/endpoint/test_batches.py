"""The batch API: every request in one batch that is alive, whoever is killed and whatever fails;
answers that came are kept, those that did not are asked again."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from processes import eventually

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.records import Sample
from klear.training.engines import batch_endpoint as module
from klear.training.engines.generate import Journal, generate, journal_path
from klear.training.engines.interface import EngineError, Request
from tests.endpoint.conftest import serving_routes

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = [Request(f"p{i}", 0, f"question {i}", seed=i) for i in range(6)]
Row = dict[str, Any]


def answered(row: Row) -> Row:
    said = {"content": f"to {row['body']['messages'][0]['content']}"}
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    body = {"model": "teacher", "choices": [choice], "usage": usage}
    return {"custom_id": row["custom_id"], "response": {"status_code": 200, "body": body}}


def wrong(row: Row, status: int) -> Row:
    body = {"error": {"message": "no"}}
    return {"custom_id": row["custom_id"], "response": {"status_code": status, "body": body}}


def expired(row: Row) -> Row:
    return {"custom_id": row["custom_id"], "response": None, "error": {"code": "batch_expired"}}


class BatchApi:
    """A batch ends once `open` is set; `reply` says what becomes of a row in the n-th batch."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Row] = {}
        self.open, self.status = True, "completed"
        self.reply: Callable[[Row, int], Row] = lambda row, _: answered(row)
        self.tear = False
        """Whether the reply to the next new batch is lost."""
        self.full = 0
        """How often a new batch is refused."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/files", self.upload),
            web.get("/v1/files/{id}/content", self.download),
            web.post("/v1/batches", self.create),
            web.get("/v1/batches", self.list),
            web.get("/v1/batches/{id}", self.retrieve),
        ]

    def rows(self, batch: Row) -> list[Row]:
        return [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]

    @property
    def asked(self) -> Counter[str]:
        """How many batches each prompt was in."""
        rows = (row for batch in self.batches.values() for row in self.rows(batch))
        return Counter(row["body"]["messages"][0]["content"] for row in rows)

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        name, file = f"file-{len(self.files)}", form["file"]
        assert isinstance(file, web.FileField)
        self.files[name] = file.file.read()
        return web.json_response({
            "id": name, "object": "file", "bytes": 1, "created_at": 0, "filename": "f",
            "purpose": "batch", "status": "processed",
        })  # fmt: skip

    async def create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if self.full:
            self.full -= 1
            return web.json_response({"error": {"message": "queue is full"}}, status=429)
        name = f"batch-{len(self.batches)}"
        self.batches[name] = {
            "id": name, "object": "batch", "created_at": 0, "status": "in_progress", **asked,
        }  # fmt: skip
        if self.tear:
            self.tear = False
            assert request.transport
            request.transport.close()
        return web.json_response(self.batches[name])

    async def list(self, _: web.Request) -> web.Response:
        rows = list(reversed(self.batches.values()))
        return web.json_response({"object": "list", "data": rows, "has_more": False})

    async def retrieve(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        if self.open and batch["status"] == "in_progress":
            number = list(self.batches).index(batch["id"])
            rows = [self.reply(row, number) for row in self.rows(batch)]
            for file, good in (("output_file_id", True), ("error_file_id", False)):
                chosen = [r for r in rows if good == (_outcome(r) == ("response", 200))]
                if chosen:
                    batch[file] = f"{batch['id']}-{file}"
                    lines = (json.dumps(r).encode() for r in reversed(chosen))  # in any order
                    self.files[batch[file]] = b"\n".join(lines) + b"\n"
            batch["status"] = self.status
        return web.json_response(batch)

    async def download(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])


def _outcome(row: Row) -> tuple[str, int]:
    return "response", (row["response"] or {}).get("status_code", 0)


@pytest.fixture
def api() -> BatchApi:
    return BatchApi()


@pytest.fixture
def url(api: BatchApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    with serving_routes(api.routes()) as url:
        yield url


def settings(url: str) -> EngineSettings:
    runtime = EngineRuntime(batch=True, max_retries=0)
    return EngineSettings(kind="openai", model="teacher", base_url=url, runtime=runtime)


def ask(out: Path, url: str) -> None:
    generate(out, REQUESTS, settings(url), Sampling(top_k=3), lambda *_: None, key="k")


def samples(out: Path) -> list[Sample]:
    with Journal(journal_path(out)) as journal:
        return list(journal.samples(r.key for r in REQUESTS))


def assert_all_answered(out: Path) -> None:
    assert [s.text for s in samples(out)] == [f"to question {i}" for i in range(6)]


def test_answers_come_from_files_of_bounded_size_each_to_its_own_request(
    api, url, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "MOST_REQUESTS", 4)
    ask(tmp_path, url)
    assert_all_answered(tmp_path)
    assert [len(api.rows(batch)) for batch in api.batches.values()] == [4, 2]
    first = api.rows(api.batches["batch-0"])[0]
    assert (first["method"], first["url"]) == ("POST", "/v1/chat/completions")
    assert (first["body"]["top_k"], first["body"]["seed"]) == (3, 0)
    assert "stream" not in first["body"]
    assert samples(tmp_path)[0].completion_tokens == 7


def test_what_expired_or_failed_is_in_the_next_batch_and_what_is_wrong_is_not(api, url, tmp_path):
    def reply(row: Row, batch: int) -> Row:
        if row["custom_id"] == "5" and not batch:
            return wrong(row, 400)
        fate = {"0": expired(row), "1": wrong(row, 500), "2": wrong(row, 429)}
        return fate.get(row["custom_id"], answered(row)) if not batch else answered(row)

    api.reply, api.status = reply, "expired"
    ask(tmp_path, url)
    found = samples(tmp_path)
    assert [s.text for s in found[:5]] == [f"to question {i}" for i in range(5)]
    assert found[5].finish_reason == "error"
    assert {p: n for p, n in api.asked.items() if n > 1} == {f"question {i}": 2 for i in range(3)}


def test_a_request_that_never_gets_an_answer_is_reported_and_is_no_sample(api, url, tmp_path):
    api.reply = lambda row, _: expired(row) if row["custom_id"] == "0" else answered(row)
    with pytest.raises(EngineError, match=r"1 requests failed in 3 batches each \(1 x batch_exp"):
        ask(tmp_path, url)
    kept = {s.problem_id for s in samples(tmp_path)}
    assert len(kept) == 5


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_batch_that_fails_as_a_whole_ends_the_stage_and_the_next_run_submits_it_again(
    api, url, tmp_path, status
):
    api.reply, api.status = lambda row, _: expired(row), status
    with pytest.raises(EngineError, match=f"batch batch-0 {status}"):
        ask(tmp_path, url)
    assert not samples(tmp_path)
    api.reply, api.status = lambda row, _: answered(row), "completed"
    ask(tmp_path, url)
    assert_all_answered(tmp_path)


@pytest.mark.parametrize("trouble", [{"tear": True}, {"full": 5}], ids=str)
def test_a_batch_is_made_once_though_its_creation_is_not_confirmed_or_refused_at_first(
    api, url, tmp_path, trouble
):
    vars(api).update(trouble)
    ask(tmp_path, url)
    assert_all_answered(tmp_path)
    assert set(api.asked.values()) == {1}


def test_an_endpoint_without_batches_is_named_with_the_cure(tmp_path):
    with (
        serving_routes([]) as url,
        pytest.raises(EngineError, match=r"Error code: 404.* needs engine\.runtime\.batch=false"),
    ):
        ask(tmp_path, url)


CLIENT = """
import sys
from pathlib import Path
from tests.endpoint.test_batches import ask
from klear.training.engines import batch_endpoint
batch_endpoint.POLL_S = 0.05
ask(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_between_submitting_and_the_answers_submits_nothing_twice(api, url, tmp_path, torn):
    """`torn`: a power cut took the line that names the batch."""
    api.open = False
    paths = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / ".package"), str(ROOT), str(ROOT / "tests")])
    }
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path), url], cwd=ROOT, env=os.environ | paths
    )
    log = tmp_path / ".resume" / "batches.jsonl"
    eventually(lambda: log.exists() and b'"batch"' in log.read_bytes())
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert not samples(tmp_path)
    if torn:
        log.write_bytes(log.read_bytes()[:-7])
    api.open = True
    ask(tmp_path, url)
    assert_all_answered(tmp_path)
    assert len(api.batches) == 1
