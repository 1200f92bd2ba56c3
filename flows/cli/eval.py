"""`klear eval MODEL_OR_URL --bench aime24,lcb_v6 --k 8`: any model, any benchmark, one protocol.

No server is needed. The same command goes on after a kill and prints finished scores at once.
"""

import errno
import os
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from configs.settings.explain import ConfigError
from eval.sandbox.errors import SandboxUnavailable
from tasks.stage.child import ChildFailed
from training.engines.interface import EngineError

FAILED = 1
ROOM = "make room and run again; every answer so far is kept"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """How to ask and how to score."""

    bench: str
    """Names or data files, separated by commas: aime24,lcb_v6,mine.jsonl."""
    k: int | None = None
    """Samples a problem; default: the paper's, 64 and 8."""
    files: tuple[str, ...] = ()
    """Read the problems of NAME from a local file, NAME=PATH (repeatable)."""
    root: Path | None = None
    """Folder with NAME.jsonl or NAME/, not the hub."""
    limit: int | None = None
    """The first N problems of each benchmark only."""
    served: Annotated[str, Parameter("--model")] = ""
    """Model to ask at an endpoint."""
    engine: Literal["vllm", "transformers"] | None = None
    """For a checkpoint; default: vllm on a GPU."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    temperature: float | None = None
    """Default: 0.6."""
    top_p: float | None = None
    """Default: 0.95."""
    top_k: int | None = None
    """Default: off."""
    repetition_penalty: float | None = None
    """Default: off."""
    max_tokens: int | None = None
    """Longest answer; default: 32768."""
    yarn: float | None = None
    """2.5 with --max-tokens 65536: the 64K budget."""
    question: str | None = None
    """What is asked; {prompt} is the problem's, {format} how to answer it."""
    seed: int | None = None
    """Default: 1234."""
    overrides: Annotated[tuple[str, ...], Parameter("--set")] = ()
    """Any other setting: --set engine.runtime.concurrency=256 (repeatable)."""
    out: Path | None = None
    """Default: a folder of .klear/eval by settings."""


def evaluate(model: str, /, *, options: Options) -> int:
    """Score any model on benchmarks.

    Args:
        model: Checkpoint folder, hub id, or URL of an OpenAI-compatible endpoint.
    """
    from flows.evaluation.request import request_of

    try:
        request = request_of(Namespace(model=model, **vars(options)))
        from flows.evaluation.run import evaluate_now

        return evaluate_now(request)
    except ConfigError as error:
        raise ConfigError(f"klear eval: {problem}" for problem in error.problems) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _fail(f"{os.strerror(errno.ENOSPC)}: {ROOM}" if full else error)
    except (EngineError, ChildFailed, SandboxUnavailable, ValueError) as error:
        return _fail(error)


def _fail(why: object) -> int:
    print(f"klear eval: {why}", file=sys.stderr)
    return FAILED
