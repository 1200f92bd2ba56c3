"""Any OpenAI-compatible endpoint: many requests in flight, patient with it, honest about failure.

What can pass (rate limits, server errors, time-outs, cut streams, garbled replies) is tried again
with exponential back-off. A request that still fails is left out and reported at the end, so that
the next run asks for it again. One that the endpoint calls wrong (too long, say) is handed over
last, with finish_reason `error`. `failures_in_a_row` failures with no success in between end the
stage. A slot is free for the next request only when the consumer has taken the last answer.
"""

import asyncio
import os
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import openai

from configs.engines import EngineSettings, Sampling
from eval.records import Sample
from training.engines import endpoint_errors as errors
from training.engines.breaker import Breaker
from training.engines.endpoint_errors import Failed, Fatal, Unanswerable, backoff, reason_of
from training.engines.endpoint_reply import Reply, answer_text, read_reply
from training.engines.interface import EngineError, Request
from training.engines.pace import Pace, Slot
from training.engines.served_names import ServedNames

WORKERS_PER_SLOT = 2
"""A request that waits for its next attempt leaves its slot to another."""
CONNECT_TIMEOUT_S = 30.0
LIST_TIMEOUT_S = 5.0
NO_KEY = "none"


class EndpointEngine:
    """Answers over HTTP. The key comes from `key` or the environment; it is written nowhere."""

    def __init__(
        self, settings: EngineSettings, sampling: Sampling, key: str | None = None
    ) -> None:
        self.settings, self.sampling = settings, sampling
        self.breaker = Breaker(settings)
        self._unanswerable: list[Request] = []
        self._streams_usage = True
        self._key = key or _key_from_environment(settings)

    @property
    def retries(self) -> int:
        return self.breaker.troubles.total()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Connections live as long as one `answer`."""

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples as they arrive. Raises EngineError after them if requests were given up."""
        self.breaker = Breaker(self.settings)
        self._unanswerable.clear()
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        loop = asyncio.new_event_loop()
        work = loop.create_task(self._ask_all(iter(requests), results))
        thread = threading.Thread(
            target=_run, args=(loop, work, results), name="endpoint", daemon=True
        )
        thread.start()
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                sample, taken = result
                yield sample
                with suppress(RuntimeError):  # the loop may have ended with an error meanwhile
                    loop.call_soon_threadsafe(taken.set)
        finally:
            if thread.is_alive():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(work.cancel)
            thread.join()
        yield from map(self._error_sample, self._unanswerable)
        if self.breaker.failures:
            raise EngineError(self.breaker.summary())

    async def _ask_all(self, requests: Iterator[Request], results: Any) -> None:
        runtime = self.settings.runtime
        self._pace = Pace(runtime.concurrency)
        self._names = ServedNames(self.settings.served_model or self.settings.model)
        silence = runtime.silence_timeout_s if runtime.stream else runtime.request_timeout_s
        client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.settings.base_url,
            max_retries=0,  # ours count, wait and report
            timeout=openai.Timeout(silence, connect=CONNECT_TIMEOUT_S, pool=None),
            http_client=openai.DefaultAsyncHttpxClient(limits=_connections(runtime.concurrency)),
        )
        async with client, asyncio.TaskGroup() as group:
            for _ in range(WORKERS_PER_SLOT * runtime.concurrency):
                group.create_task(self._work(client, requests, results))

    async def _work(
        self, client: openai.AsyncOpenAI, requests: Iterator[Request], results: Any
    ) -> None:
        slot = Slot(self._pace)
        while True:
            await slot.take()
            request = next(requests, None)
            if request is None:
                slot.free()
                return
            try:
                sample = await self._ask(client, request, slot)
                taken = asyncio.Event()
                results.put((sample, taken))
                await taken.wait()
            except Failed as error:
                self.breaker.failures[str(error)] += 1
                self.breaker.given_up(str(error))
            except Unanswerable as error:
                self._unanswerable.append(request)
                self.breaker.given_up(str(error))
            finally:
                slot.free()

    async def _ask(self, client: openai.AsyncOpenAI, request: Request, slot: Slot) -> Sample:
        """One sample. Raises Failed, Unanswerable or Fatal; `slot` is held at return.

        A refusal for lack of room costs no attempt as long as other requests are answered.
        """
        failed, answered_before = 0, -1
        while True:
            try:
                return self._sample(request, await self._send(client, request))
            except errors.CAUGHT as error:
                await self._consider(client, error)
                reason, asked = reason_of(error), errors.asked_wait(error)
            others_go_on = reason == "HTTP 429" and self.breaker.answered > answered_before >= 0
            answered_before = self.breaker.answered
            failed += not others_go_on
            if failed > self.settings.runtime.max_retries:
                raise Failed(reason)
            self.breaker.troubles[reason] += 1
            slot.free()
            await asyncio.sleep(backoff(max(failed - 1, 0), asked))
            await slot.take()

    async def _send(self, client: openai.AsyncOpenAI, request: Request) -> Reply:
        s, runtime = self.sampling, self.settings.runtime
        more: dict[str, Any] = {}
        if runtime.stream and self._streams_usage:
            more["stream_options"] = {"include_usage": True}
        extra = {"top_k": s.top_k, "repetition_penalty": s.repetition_penalty}
        async with (
            asyncio.timeout(runtime.request_timeout_s),
            client.chat.completions.with_streaming_response.create(
                model=self.settings.model,
                messages=[{"role": "user", "content": request.prompt}],
                temperature=s.temperature,
                top_p=s.top_p,
                max_tokens=s.max_tokens,
                seed=request.seed,
                stream=runtime.stream,
                extra_body={n: v for n, v in extra.items() if v is not None},
                **more,
            ) as response,
        ):
            return await read_reply(response)

    async def _consider(self, client: openai.AsyncOpenAI, error: Exception) -> None:
        """What a failed attempt means for the run; raises Fatal or Unanswerable."""
        if isinstance(error, openai.APITimeoutError):
            return
        if isinstance(error, openai.APIConnectionError):
            self.breaker.no_connection(reason_of(error))
        if not isinstance(error, openai.APIStatusError):
            return
        status, said = error.status_code, self._words(error)
        self.breaker.last_words = said
        if status in errors.HOPELESS:
            if self.breaker.hopeless():
                raise self.breaker.refusal(status, await _served(client) if status == 404 else None)
        elif status in errors.OVERLOADED:
            self._pace.refused(errors.retry_after(error.response.headers))
        elif status in (400, 422) and "stream_options" in said and self._streams_usage:
            self._streams_usage = False
        elif status < 500 and status not in errors.TRANSIENT:
            raise Unanswerable(f"HTTP {status} ({said})")

    def _sample(self, request: Request, reply: Reply) -> Sample:
        finish = reply.finish()
        self._names.check(reply.model)
        sample = Sample(
            problem_id=request.problem_id,
            index=request.index,
            model=self.settings.model,
            text=answer_text(reply, self.settings.think_prefill),
            finish_reason=finish,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.tokens,
        )
        self.breaker.success()
        self._pace.served()
        return sample

    def _error_sample(self, request: Request) -> Sample:
        return Sample(
            problem_id=request.problem_id,
            index=request.index,
            model=self.settings.model,
            text="",
            finish_reason="error",
        )

    def _words(self, error: openai.APIStatusError) -> str:
        """The first words of what the server says, without the key."""
        return str(error.message).replace(self._key, "***").partition("\n")[0][:200]


def _connections(most: int) -> Any:
    """Room for every request in flight: the package's own limit is 1,000."""
    return type(openai.DEFAULT_CONNECTION_LIMITS)(
        max_connections=None, max_keepalive_connections=most
    )


async def _served(client: openai.AsyncOpenAI) -> list[str] | None:
    """The models that the endpoint names, or None when it does not say."""
    try:
        return [m.id for m in (await client.models.list(timeout=LIST_TIMEOUT_S)).data]
    except Exception:  # whatever is wrong here, the 404 is what there is to report
        return None


def _key_from_environment(settings: EngineSettings) -> str:
    if not settings.api_key_env:
        return NO_KEY
    key = os.environ.get(settings.api_key_env, "")
    if not key:
        raise EngineError(
            f"{settings.base_url} needs a key: set the environment variable "
            f"{settings.api_key_env} (any text for a local server without keys)"
        )
    return key


def _run(loop: asyncio.AbstractEventLoop, work: "asyncio.Task[None]", results: Any) -> None:
    """Body of the thread: the loop until `work` ends, its error handed over, then the end mark."""
    try:
        loop.run_until_complete(work)
    except asyncio.CancelledError:
        pass
    except BaseExceptionGroup as group:
        results.put(_first(group))
    except Exception as error:
        results.put(error)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())  # its threads looked up names
        loop.close()
        results.put(None)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return EngineError(str(error)) if isinstance(error, Fatal) else error
