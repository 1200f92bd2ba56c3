"""The batch API of an endpoint: files of requests, answered within a day, often at half the price.

`batches.jsonl` in the stage's scratch folder names each uploaded file and its requests before a
batch is made of it, and then the batch. After a kill, or a reply that was lost, the batch is found
by its file: nothing is submitted, or paid for, twice. Answers that came are kept; requests that
failed or expired are in a batch of the next round. What makes a whole batch fail ends the stage.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
from openai.types import Batch as Status

from klear.configs.files import replace_text
from klear.eval.records import Sample
from klear.training.engines import endpoint
from klear.training.engines.endpoint import BrokenReply, EndpointEngine, Reply
from klear.training.engines.interface import EngineError, Key, Request
from klear.training.layout import read_lines

URL = "/v1/chat/completions"
MOST_REQUESTS, MOST_BYTES = 50_000, 90_000_000  # of a file; Together takes 100 MB, OpenAI 200
ENDED = ("completed", "expired", "failed", "cancelled")
ROUNDS = 3  # batches that a request may be in
POLL_S = 30.0
PASSES = (
    openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError, httpx2.HTTPError,
)  # fmt: skip


@dataclass
class Submitted:
    """The requests of one uploaded file, in its order."""

    file: str
    keys: list[Key]
    batch: str = ""  # made of the file; empty: none yet, as far as we were told
    unsure: bool = False  # whether there may be one that we were not told of


class BatchEngine(EndpointEngine):
    """Answers by batches; what was submitted is kept in `scratch`."""

    @property
    def _log(self) -> Path:
        return self.scratch / "batches.jsonl"

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples as batches end. Raises EngineError after them if requests were given up."""
        self._answered = self._failed_in_a_row = 0
        self._why: dict[Key, str] = {}
        waiting, runtime = {r.key: r for r in requests}, self.settings.runtime
        timeout = openai.Timeout(runtime.silence_timeout_s, connect=endpoint.CONNECT_TIMEOUT_S)
        how: Any = {"timeout": timeout, "max_retries": runtime.max_retries}
        try:
            with openai.OpenAI(api_key=self._key, base_url=self.settings.base_url, **how) as client:
                there = self._submitted_before(waiting)
                for _ in range(ROUNDS):
                    inside = {key for s in there for key in s.keys}
                    fresh = [r for key, r in waiting.items() if key not in inside]
                    there += self._upload(client, fresh)
                    yield from self._answers(client, there, waiting)
                    there = []
        except (openai.APIError, httpx2.HTTPError) as error:
            why = str(error.__cause__ or error).partition("\n")[0][:200].replace(self._key, "***")
            raise EngineError(
                f"{self.settings.base_url}: the batch API failed ({why}); what was submitted goes "
                "on with the next run; an endpoint without it needs engine.runtime.batch=false"
            ) from None
        self._failures = Counter(self._why.get(key, "no answer") for key in waiting)
        self._raise_failures(f"in {ROUNDS} batches each")

    def _submitted_before(self, waiting: dict[Key, Request]) -> list[Submitted]:
        """Of earlier runs, those that hold what is still waited for."""
        known, rows = dict[str, Submitted](), read_lines(self._log)
        replace_text(self._log, "".join(json.dumps(row) + "\n" for row in rows))  # none is torn
        for row in rows:
            if "keys" in row:
                keys = [(problem, index) for problem, index in row["keys"]]
                known[row["file"]] = Submitted(row["file"], keys, unsure=True)
            elif row["batch"]:
                known[row["file"]].batch = row["batch"]
            else:  # it failed as a whole
                del known[row["file"]]
        return [s for s in known.values() if any(key in waiting for key in s.keys)]

    def _note(self, **row: Any) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _upload(self, client: openai.OpenAI, requests: Sequence[Request]) -> Iterator[Submitted]:
        text, keys = bytearray(), list[Key]()
        for number, request in enumerate(requests, 1):
            body = self._body(request)
            asked = {"method": "POST", "url": URL, "body": body | body.pop("extra_body")}
            text += json.dumps({"custom_id": str(len(keys)), **asked}).encode() + b"\n"
            keys.append(request.key)
            if len(keys) == MOST_REQUESTS or len(text) > MOST_BYTES or number == len(requests):
                file = client.files.create(file=("klear.jsonl", bytes(text)), purpose="batch")
                self._note(file=file.id, keys=keys)
                yield Submitted(file.id, keys)
                text, keys = bytearray(), []

    def _answers(
        self, client: openai.OpenAI, there: Sequence[Submitted], waiting: dict[Key, Request]
    ) -> Iterator[Sample]:
        """The answers of all these batches; each that comes is no longer in `waiting`."""
        left, silent = list(there), 0
        while left:
            heard, full = False, False
            for submitted in tuple(left):
                if full and not submitted.batch:
                    continue  # the endpoint takes no more batches for now
                try:
                    status = self._status(client, submitted)
                    if status.status in ENDED:
                        yield from self._read(client, submitted, status, waiting)
                        left.remove(submitted)
                    heard = True
                except PASSES as error:
                    full = isinstance(error, openai.RateLimitError)
                    if silent + 1 >= endpoint.MOST_FAILURES and not heard:
                        raise
            silent = 0 if heard else silent + 1
            if left:
                self.tell(f"{len(left)} batches under way at {self.settings.base_url}")
                time.sleep(POLL_S)

    def _status(self, client: openai.OpenAI, submitted: Submitted) -> Status:
        """Of the batch of a file, which is made if there is none."""
        if submitted.batch:
            return client.batches.retrieve(submitted.batch)
        all_batches = client.batches.list() if submitted.unsure else ()
        status = next((b for b in all_batches if b.input_file_id == submitted.file), None)
        if status is None:
            once, how = client.with_options(max_retries=0), dict[str, Any](endpoint=URL)
            submitted.unsure = True  # until the reply is here, or says that there is none
            try:
                how |= {"input_file_id": submitted.file, "completion_window": "24h"}
                status = once.batches.create(**how)
            except openai.RateLimitError:
                submitted.unsure = False
                raise
        submitted.batch = status.id
        self._note(file=submitted.file, batch=status.id)
        return status

    def _read(
        self, client: openai.OpenAI, submitted: Submitted, status: Status,
        waiting: dict[Key, Request],
    ) -> Iterator[Sample]:  # fmt: skip
        """Raises EngineError after its answers where the batch failed, or somebody cancelled it."""
        for file in filter(None, (status.output_file_id, status.error_file_id)):
            with client.files.with_streaming_response.content(file) as response:
                for row in map(json.loads, filter(None, response.iter_lines())):
                    key = submitted.keys[int(row["custom_id"])]
                    if key in waiting and (sample := self._sample(waiting[key], row)):
                        del waiting[key]
                        yield sample
        if status.status in ("failed", "cancelled"):
            self._note(file=submitted.file, batch="")
            errors = (status.errors and status.errors.data) or []
            why = "; ".join(f"{e.code}: {e.message}" for e in errors[:3])
            raise EngineError(
                f"{self.settings.base_url}: batch {status.id} {status.status} ({why}); finished "
                "answers are kept, the next run submits the rest again"
            )

    def _sample(self, request: Request, row: dict[str, Any]) -> Sample | None:
        """None where the request is to be asked again."""
        response, error = row.get("response") or {}, row.get("error") or {}
        code, body, reply = int(response.get("status_code") or 0), response.get("body"), Reply()
        reason = f"HTTP {code} {json.dumps(body)[:200]}" if code else str(error.get("code"))
        if 400 <= code < 500 and code not in {*endpoint.PASSING, *endpoint.FATAL}:
            self._count_failure(reason)
            return request.answered(self.settings.model, "", "error")
        try:
            if code != 200:
                raise BrokenReply(reason)
            reply.add(json.dumps(body))
            return self._take(request, reply, 1)
        except BrokenReply as broken:
            self._why[request.key] = str(broken)
            return None
