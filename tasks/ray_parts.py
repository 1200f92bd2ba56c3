"""Parts on the nodes of a Ray cluster, for `tasks.parts`.

A part is one Ray task of one CPU. Where its node sees the stage's scratch, it writes there; from
elsewhere the folder comes back as a stream of chunks that waits for its reader. A part that is lost
with its node is computed again elsewhere, from the start, and gives the same bytes. While none
runs, as others hold every CPU, the stage says that it waits; once one runs, silence is a stall.

Plain tasks, because prefect-ray's cost more and also need Prefect's server, which listens on
loopback, from every node: of 64 parts on two busy cores one of nothing takes 5 ms as a task and
367 by prefect-ray, one of 20 ms 13 and 271 (tests/bench/bench_ray_parts.py).
"""

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eval.ray_cluster import BUSY, POLL_S, code_digest, cores, has_no_cpu, join, same_code
from tasks.progress import report
from tasks.ray_files import Inputs, NotHere, Received, folder_of, pack, read_chunk, sent, trim

_ATTEMPTS = 4
_CHUNKS_AHEAD = 2
_FORGET_S = 20.0
_HURRY_S = 2.0
_BEGUN = "begun"
_LOG = logging.getLogger(__name__)


class _Place(NamedTuple):
    """Where the folders of parts belong, on the machine that asks."""

    scratch: str
    call: str
    """Names this call, and a file in `scratch` that only those who share the folder see."""
    run: str
    """Names the process that asks: what its calls send to a node is sent once."""


class _FileServer:
    """An actor on the machine that asks: nodes that do not see its files read them here."""

    def read(self, path: str, offset: int) -> bytes:
        return read_chunk(path, offset)


def _compute(code: str, packed: bytes, place: _Place, server: Any) -> Iterator[tuple[str, bytes]]:
    """On a node: compute one part. Yields that it has begun, then its folder's name, or its node
    and its chunks."""
    yield _BEGUN, b""
    same_code(code)
    import ray

    def fetch(path: str, offset: int) -> bytes:
        return ray.get(server.read.remote(path, offset))

    inputs = Inputs(place.run, fetch if server else None)
    compute, part = inputs.unpack(packed)
    scratch = Path(place.scratch)
    if (scratch / place.call).exists() and os.access(scratch, os.W_OK):
        folder = scratch / f"{uuid.uuid4().hex}.partial"
        folder.mkdir()
        compute(part, folder)
        yield f"here/{folder.name}", b""
        return
    of_call = inputs.folder() / place.call
    of_call.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=of_call) as made:
        compute(part, Path(made))
        yield "from", ray.get_runtime_context().get_node_id().encode()
        yield from sent(Path(made))


def _forget(place: _Place, idle: bool) -> None:
    """On a node: nothing of a call stays but copies of its inputs, and of those not too many."""
    shutil.rmtree(folder_of(place.run) / place.call, ignore_errors=True)
    if idle:
        trim(place.run)


def _leave(run: str) -> None:
    """On a node: the run has ended."""
    shutil.rmtree(folder_of(run), ignore_errors=True)


class _ThisRun:
    """What the calls of this process share: a name, and the nodes that keep copies under it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live = 0
        self.name = f"run-{uuid.uuid4().hex}"
        self.nodes: set[str] = set()

    def begin(self) -> None:
        with self._lock:
            self._live += 1

    def end(self) -> bool:
        """Whether no other call may be reading copies now."""
        with self._lock:
            self._live -= 1
            return not self._live

    def leave(self) -> None:
        """At the end of this process: ask the nodes to remove the copies, and wait a moment."""
        if not self.nodes:
            return
        import ray

        if ray.is_initialized():
            with contextlib.suppress(Exception):  # the cluster may have ended before
                _on_nodes(self.nodes, _HURRY_S, _leave, self.name)


def _on_nodes(nodes: set[str], patience_s: float, act: Callable[..., None], *given: Any) -> None:
    import ray

    task = ray.remote(num_cpus=0, max_retries=0)(act)
    asked = [task.options(scheduling_strategy=_on(node)).remote(*given) for node in nodes]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=patience_s)


_RUN = _ThisRun()
atexit.register(_RUN.leave)


@dataclass
class _Attempt:
    number: int
    received: Received | None = None
    begun: bool = False


class RayParts:
    """One call of `computed_parts` on a cluster."""

    def __init__(
        self, address: str, scratch: Path, parts: Sequence[Any], compute: Callable, at_once: int
    ) -> None:
        self._ray = join(address)
        self._scratch, self._parts, self._of_part = scratch.absolute(), parts, compute
        self._at_once = at_once
        self._place = _Place(str(self._scratch), f"call-{uuid.uuid4().hex}", _RUN.name)
        missing = [n for n in range(len(parts)) if not self._folder(n).exists()]
        self._todo = deque(missing)
        self._lost = dict.fromkeys(missing, 0)
        self._live: dict[Any, _Attempt] = {}
        self._server: Any = None
        self._nodes: set[str] = set()
        self._task = self._ray.remote(_compute).options(
            num_cpus=1,
            max_retries=0,
            num_returns="streaming",
            _generator_backpressure_num_objects=_CHUNKS_AHEAD,
        )

    def _folder(self, number: int) -> Path:
        return self._scratch / f"{number:05d}"

    def folders(self) -> Generator[Path, None, None]:
        """The folder of each part in order."""
        self._clear()
        (self._scratch / self._place.call).touch()
        _RUN.begin()
        try:
            for number in range(len(self._parts)):
                while not self._folder(number).exists():
                    if not self._step() and self._starves():
                        report(number, len(self._parts), BUSY)
                yield self._folder(number)
        except BaseException:
            self._end(_HURRY_S)  # what a part was doing may never end
            raise
        self._end(_FORGET_S)

    def _starves(self) -> bool:
        """Whether nothing of this call runs, because nothing can."""
        return not any(a.begun for a in self._live.values()) and has_no_cpu(self._ray)

    def _step(self) -> bool:
        """Hand out what may run now, and take what has arrived; whether anything has."""
        most = self._at_once or 2 * cores(self._ray)  # Ray runs one a CPU; the others wait there
        while self._todo and len(self._live) < most:
            number = self._todo.popleft()
            packed = pack((self._of_part, self._parts[number]))
            live = self._task.remote(code_digest(), packed, self._place, self._server)
            self._live[live] = _Attempt(number)
        ready, _ = self._ray.wait(list(self._live), num_returns=1, timeout=POLL_S)
        for live in ready:
            self._take(live, self._live[live])
        return bool(ready)

    def _take(self, live: Any, attempt: _Attempt) -> None:
        from ray.exceptions import RayError, RayTaskError

        try:
            name, chunk = self._ray.get(next(live))
            if self._arrived(attempt, name, chunk):
                del self._live[live]
        except RayTaskError as error:
            del self._live[live]
            if isinstance(error.cause, NotHere) and self._server is None:
                self._serve_files()
            elif not isinstance(error.cause, NotHere):
                raise error.cause from error
            self._todo.appendleft(attempt.number)
        except (RayError, StopIteration, OSError) as error:
            del self._live[live]
            self._again(attempt, error)

    def _arrived(self, attempt: _Attempt, name: str, chunk: bytes) -> bool:
        """Whether the part is now whole, and in its place."""
        if not attempt.begun:  # `name` is _BEGUN
            attempt.begun = True
        elif name.startswith("here/"):
            os.rename(self._scratch / name.removeprefix("here/"), self._folder(attempt.number))
            return True
        elif attempt.received is None:  # `name` is "from"
            self._nodes.add(chunk.decode())
            attempt.received = Received(self._scratch / f"{uuid.uuid4().hex}.partial")
            attempt.received.folder.mkdir()
        elif attempt.received.take(name, chunk):
            os.rename(attempt.received.folder, self._folder(attempt.number))
            return True
        return False

    def _again(self, attempt: _Attempt, error: Exception) -> None:
        if attempt.received:
            shutil.rmtree(attempt.received.folder, ignore_errors=True)
        self._lost[attempt.number] += 1
        if self._lost[attempt.number] == _ATTEMPTS:
            raise RuntimeError(
                f"part {attempt.number} was lost {_ATTEMPTS} times with its node or worker, "
                "perhaps out of memory: smaller parts need less; finished parts are kept"
            ) from error
        _LOG.warning("part %d was lost (%s): again elsewhere", attempt.number, type(error).__name__)
        self._todo.appendleft(attempt.number)

    def _serve_files(self) -> None:
        here = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(_FileServer)
        options = actor.options(
            num_cpus=0, max_concurrency=4, max_restarts=-1, max_task_retries=-1,
            scheduling_strategy=_on(here),
        )  # fmt: skip
        self._server = options.remote()

    def _end(self, patience_s: float) -> None:
        """Nothing of this call stays but, on the nodes, copies of what it read."""
        for live in self._live:
            with contextlib.suppress(Exception):  # it has ended, or its node has
                self._ray.cancel(live, force=True)
        _RUN.nodes |= self._nodes
        _on_nodes(self._nodes, patience_s, _forget, self._place, _RUN.end())
        if self._server is not None:
            self._ray.kill(self._server)
        self._clear()

    def _clear(self) -> None:
        for left in (*self._scratch.glob("*.partial"), *self._scratch.glob("call-*")):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
