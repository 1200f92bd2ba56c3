"""Any OpenAI-compatible endpoint: many requests in flight, patient with it, honest about failure.

What can pass (rate limits, server errors, time-outs, cut connections) is tried again with
exponential back-off. A request that still fails is left out and reported at the end, so that the
next run asks for it again. One that the endpoint calls wrong (too long, say) is handed over last,
with finish_reason `error`. `failures_in_a_row` failures with no success in between end the stage.
"""

import asyncio
import email.utils
import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Self

import openai
from openai.types.chat import ChatCompletion

from configs.engines import EngineSettings, Sampling
from eval.records import FinishReason, Sample
from training.engines.interface import EngineError, Request

FIRST_DELAY_S, LONGEST_DELAY_S, LONGEST_ASKED_DELAY_S = 0.5, 60.0, 900.0
FATAL_STATUS = {401: "the key is refused", 403: "access is refused", 404: "no such model or URL"}
TRANSIENT_STATUS = (408, 409, 425, 429)


class Fatal(Exception):
    """No request of this run can succeed."""


class Failed(Exception):
    """One request was given up; another run may ask again."""


class Unanswerable(Exception):
    """The endpoint says that this very request is wrong: asking again is useless."""


class EndpointEngine:
    """Answers over HTTP. The key comes from the environment and is never written anywhere."""

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling
        self.failures: Counter[str] = Counter()
        self.retries = 0
        self._failed_in_a_row = 0
        self._unanswerable: list[Request] = []
        self._key = os.environ.get(settings.api_key_env, "")
        if not self._key:
            raise EngineError(
                f"{settings.base_url} needs a key: set the environment variable "
                f"{settings.api_key_env} (any text for a local server without keys)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Connections live as long as one `answer`."""

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples as they arrive. Raises EngineError after them if requests were given up."""
        self.failures.clear()
        self._unanswerable.clear()
        results: queue.SimpleQueue[Sample | BaseException | None] = queue.SimpleQueue()
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
                yield result
        finally:
            if thread.is_alive():
                loop.call_soon_threadsafe(work.cancel)
            thread.join()
        yield from map(self._error_sample, self._unanswerable)
        if self.failures:
            raise EngineError(self._summary())

    async def _ask_all(
        self, requests: Iterator[Request], results: "queue.SimpleQueue[Any]"
    ) -> None:
        runtime = self.settings.runtime
        async with openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.settings.base_url,
            max_retries=0,  # ours count, wait and report
            timeout=runtime.request_timeout_s,
        ) as client:

            async def worker() -> None:
                for request in requests:
                    try:
                        results.put(await self._ask(client, request))
                        self._failed_in_a_row = 0
                    except Failed as error:
                        self.failures[str(error)] += 1
                        self._count_in_a_row(str(error))
                    except Unanswerable as error:
                        self._unanswerable.append(request)
                        self._count_in_a_row(str(error))

            async with asyncio.TaskGroup() as group:
                for _ in range(runtime.concurrency):
                    group.create_task(worker())

    def _count_in_a_row(self, reason: str) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.settings.runtime.failures_in_a_row:
            failed = f"{self._failed_in_a_row} requests in a row failed, the last with {reason}"
            raise Fatal(f"{self.settings.base_url}: {failed}; finished answers are kept")

    async def _ask(self, client: openai.AsyncOpenAI, request: Request) -> Sample:
        """One sample, with retries; raises Failed, Unanswerable or Fatal."""
        attempts = self.settings.runtime.max_retries + 1
        for attempt in range(attempts):
            try:
                return self._sample(request, await self._send(client, request))
            except openai.APIStatusError as error:
                status = error.status_code
                if status in FATAL_STATUS:
                    why = f"{FATAL_STATUS[status]} (HTTP {status}) by {self.settings.base_url}"
                    raise Fatal(f"{why} for model {self.settings.model}") from None
                if status < 500 and status not in TRANSIENT_STATUS:
                    raise Unanswerable(f"HTTP {status} ({self._message(error)})") from None
                reason, asked = f"HTTP {status}", retry_after(error.response.headers)
            except openai.APITimeoutError:
                reason, asked = "time-out", None
            except (openai.APIError, ValueError) as error:  # connection, cut or garbled body
                reason, asked = type(error).__name__, None
            if attempt + 1 < attempts:
                self.retries += 1
                await asyncio.sleep(backoff(attempt, asked))
        raise Failed(reason)

    async def _send(self, client: openai.AsyncOpenAI, request: Request) -> ChatCompletion:
        return await client.chat.completions.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": request.prompt}],
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            max_tokens=self.sampling.max_tokens,
            seed=request.seed,
        )

    def _sample(self, request: Request, reply: ChatCompletion) -> Sample:
        if not isinstance(reply, ChatCompletion) or not reply.choices:
            raise ValueError("the reply holds no choice")
        choice = reply.choices[0]
        text = answer_text(choice.message, self.settings.think_prefill)
        reasons: dict[str, FinishReason] = {"length": "length", "content_filter": "refused"}
        finish = reasons.get(choice.finish_reason or "stop", "stop")
        if finish == "stop" and not (choice.message.content or "").strip():
            finish = "empty"
        usage = reply.usage
        return Sample(
            problem_id=request.problem_id,
            index=request.index,
            model=self.settings.model,
            text=text,
            finish_reason=finish,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )

    def _error_sample(self, request: Request) -> Sample:
        return Sample(
            problem_id=request.problem_id,
            index=request.index,
            model=self.settings.model,
            text="",
            finish_reason="error",
        )

    def _message(self, error: openai.APIStatusError) -> str:
        """The first words of what the server says, without the key."""
        return str(error.message).replace(self._key, "***").partition("\n")[0][:200]

    def _summary(self) -> str:
        reasons = ", ".join(f"{n} x {reason}" for reason, n in self.failures.most_common(5))
        return (
            f"{self.settings.base_url}: {self.failures.total()} requests failed after "
            f"{self.settings.runtime.max_retries} retries each ({reasons}); finished answers are "
            "kept, run again for the rest"
        )


def _run(
    loop: asyncio.AbstractEventLoop,
    work: "asyncio.Task[None]",
    results: "queue.SimpleQueue[Any]",
) -> None:
    """Body of the thread: the loop until `work` ends, its error handed over, then the end mark."""
    try:
        loop.run_until_complete(work)
    except asyncio.CancelledError:
        pass
    except BaseExceptionGroup as errors:
        results.put(_first(errors))
    except Exception as error:
        results.put(error)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())  # its threads looked up names
        loop.close()
        results.put(None)


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return EngineError(str(errors)) if isinstance(errors, Fatal) else errors


def answer_text(message: Any, think_prefill: str) -> str:
    """The text the judge sees: reasoning that the endpoint reports apart is put into think tags.

    Reasoning that was cut before any answer stays unclosed.
    """
    content = (message.content or "").encode("utf-8", "replace").decode()
    extra = message.model_extra or {}
    reasoning = extra.get("reasoning_content") or extra.get("reasoning") or ""
    if reasoning:
        closed = "\n</think>\n\n" if content.strip() else ""
        return f"<think>\n{reasoning.strip()}{closed}{content}"
    if content and think_prefill and not content.startswith(think_prefill.strip()):
        return think_prefill + content
    return content


def backoff(attempt: int, asked: float | None, jitter: float | None = None) -> float:
    """Seconds to wait: what the server asked for, else 0.5 s doubled each time, ± 50 %."""
    if asked is not None:
        return min(asked, LONGEST_ASKED_DELAY_S)
    spread = random.random() if jitter is None else jitter
    return min(FIRST_DELAY_S * 2**attempt, LONGEST_DELAY_S) * (0.5 + spread)


def retry_after(headers: Any) -> float | None:
    """The Retry-After header as seconds from now; None when absent or unreadable."""
    text = headers.get("retry-after")
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())
