"""`klear eval MODEL_OR_URL --bench aime24,lcb_v6 --k 8`: any model, any benchmark, one protocol.

No server is needed. The same command goes on after a kill and prints finished scores at once.
"""

import argparse
import errno
import os
import sys
from pathlib import Path

DONE, FAILED, WRONG_USAGE = 0, 1, 2
ROOM = "make room and run again; every answer so far is kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klear eval`."""
    add = parser.add_argument
    add("model", metavar="MODEL_OR_URL",
        help="checkpoint folder, hub id, or URL of an OpenAI-compatible endpoint")  # fmt: skip
    add("--bench", required=True, metavar="NAMES",
        help="names or data files, separated by commas: aime24,lcb_v6,mine.jsonl")  # fmt: skip
    add("--k", type=int, help="samples a problem (default: the paper's, 64 and 8)")
    add("--files", action="append", default=[], metavar="NAME=PATH",
        help="read the problems of NAME from a local file (repeatable)")  # fmt: skip
    add("--root", type=Path, metavar="DIR", help="folder with NAME.jsonl or NAME/, not the hub")
    add("--limit", type=int, metavar="N", help="the first N problems of each benchmark only")
    add("--model", dest="served", metavar="NAME", help="model to ask at an endpoint")
    add("--engine", choices=["vllm", "transformers"], help="for a checkpoint (vllm on a GPU)")
    add("--api-key-env", default="OPENAI_API_KEY", metavar="VARIABLE",
        help="environment variable that holds the key (%(default)s)")  # fmt: skip
    add("--temperature", type=float, help="default: 0.6")
    add("--top-p", type=float, help="default: 0.95")
    add("--top-k", type=int, help="default: off")
    add("--repetition-penalty", type=float, help="default: off")
    add("--max-tokens", type=int, help="longest answer (default: 32768)")
    add("--yarn", type=float, metavar="FACTOR", help="2.5 with --max-tokens 65536: the 64K budget")
    add("--question", metavar="TEXT",
        help="what is asked; {prompt} is the problem's, {format} how to answer it")  # fmt: skip
    add("--seed", type=int, help="default: 1234")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="any other setting: --set engine.runtime.concurrency=256 (repeatable)")  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="default: a folder of .klear/eval by settings")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong usage."""
    from configs.explain import ConfigError
    from eval.sandbox_errors import SandboxUnavailable
    from flows.eval_request import request_of
    from tasks.child import ChildFailed
    from training.engines.interface import EngineError

    try:
        request = request_of(args)
        from flows.eval_run import evaluate_now

        return evaluate_now(request)
    except ConfigError as error:
        return _complain(str(error), WRONG_USAGE)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _complain(f"{os.strerror(errno.ENOSPC)}: {ROOM}" if full else str(error), FAILED)
    except (EngineError, ChildFailed, SandboxUnavailable, ValueError) as error:
        return _complain(str(error), FAILED)


def _complain(message: str, code: int) -> int:
    print(f"klear eval: {message}", file=sys.stderr)
    return code
