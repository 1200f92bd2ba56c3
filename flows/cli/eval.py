"""`klear eval MODEL_OR_URL --bench aime24,lcb_v6 --k 8`: any model, any benchmark, one protocol.

No server is needed. The same command goes on after a kill and prints finished scores at once.
"""

import errno
import importlib.util
import ipaddress
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter
from pydantic import ValidationError

from configs.settings.evaluation import WITH_FORMAT, BenchmarkProtocol, Evaluation, named_protocols
from configs.settings.explain import ConfigError, explain, nearest
from configs.settings.overrides import apply_override
from eval.row_files import SUFFIXES
from eval.sandbox.errors import SandboxUnavailable
from tasks.stage.child import ChildFailed
from training.engines.interface import EngineError

FAILED = 1
ROOM = "make room and run again; every answer so far is kept"
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
INSTEAD = {
    "engine": "--engine",
    "engine_runtime": "--set engine.runtime.…",
    "yarn_factor": "--yarn",
}
"""Settings of the stage `evaluate` that `klear eval` does not read, and what it reads."""


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
    try:
        evaluation, files = settings_of(model, options)
        from flows.evaluation import EvalRequest, evaluate_now

        return evaluate_now(EvalRequest(evaluation, files, options.limit, options.out))
    except ConfigError as error:
        raise ConfigError(f"klear eval: {problem}" for problem in error.problems) from error
    except (OSError, EngineError, ChildFailed, SandboxUnavailable, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = f"{os.strerror(errno.ENOSPC)}: {ROOM}" if full else error
        print(f"klear eval: {why}", file=sys.stderr)
        return FAILED


def settings_of(model: str, options: Options) -> tuple[Evaluation, dict[str, Path]]:
    """What is evaluated, and the local files of its sources: those of other sources are the hub's.

    Raises ConfigError with every mistake, EngineError when an endpoint cannot be reached.
    """
    problems = [
        f"--{name} {value}: at least 1"
        for name, value in (("k", options.k), ("limit", options.limit))
        if value is not None and value < 1
    ]
    if options.root is not None and not options.root.is_dir():
        problems.append(f"--root {options.root}: no such folder")
    files = _files(options.files, problems)
    protocols = _protocols(options, files, problems)
    engine = (_endpoint if "://" in model else _checkpoint)(model, options, problems)
    if problems:
        raise ConfigError(problems)
    evaluate = {
        "protocols": [p.model_dump() for p in protocols],
        "sampling": {n: v for n in SAMPLING if (v := getattr(options, n)) is not None},
        **({} if options.seed is None else {"seed": options.seed}),
    }
    data: dict[str, Any] = {"engine": engine, "evaluate": evaluate}
    for text in options.overrides:
        apply_override(data, text)
    try:
        evaluation = Evaluation.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, Evaluation)) from error
    if unread := INSTEAD.keys() & evaluation.evaluate.model_fields_set:
        raise ConfigError([f"evaluate.{name}: use {INSTEAD[name]}" for name in sorted(unread)])
    if options.root is not None:
        from tasks.models.benchmark_files import find_below

        try:
            for source in sorted({p.source for p in protocols} - set(files)):
                files[source] = find_below(options.root, source)[0]
        except FileNotFoundError as error:
            raise ConfigError([str(error)]) from error
    return evaluation, files


def _files(texts: tuple[str, ...], problems: list[str]) -> dict[str, Path]:
    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not Path(path).is_file():
            problems.append(f"--files {text}: write NAME=PATH of a file that exists")
        elif not path.endswith(SUFFIXES):
            problems.append(f"--files {text}: none of {', '.join(SUFFIXES)}")
        else:
            known = named_protocols().get(name)
            found[known.source if known else name] = Path(path)
    return found


def _protocols(
    options: Options, files: dict[str, Path], problems: list[str]
) -> list[BenchmarkProtocol]:
    """The benchmarks of --bench; data files among them join `files`."""
    known, found = named_protocols(), []
    for name in dict.fromkeys(filter(None, map(str.strip, options.bench.split(",")))):
        if name in known:
            found.append(known[name])
        elif name in files or (Path(name).is_file() and name.endswith(SUFFIXES)):
            stem = name if name in files else Path(name).name.partition(".")[0]
            files.setdefault(stem, Path(name))
            found.append(BenchmarkProtocol(name=stem, source=stem, k=1, question=WITH_FORMAT))
        elif name.endswith(SUFFIXES):
            problems.append(f"--bench {name}: no such file")
        else:
            there = f"there are {', '.join(known)}; or name a data file"
            problems.append(f"--bench {name}: no such benchmark{nearest(name, known)} ({there})")
    if not found and not problems:
        problems.append("--bench is empty: name at least one benchmark")
    chosen = {"k": options.k, "question": options.question}
    update = {name: value for name, value in chosen.items() if value is not None}
    return [p.model_copy(update=update) for p in found]


def _checkpoint(model: str, options: Options, problems: list[str]) -> dict[str, Any]:
    """A folder with a model, or one of the store with the model in `checkpoint`, or a hub id."""
    if options.served:
        problems.append("--model names a model at an endpoint; here MODEL is the model itself")
    folder = Path(model).expanduser()
    places = [f for f in (folder, folder / "checkpoint") if (f / "config.json").is_file()]
    if not places and (folder.exists() or not HUB_ID.fullmatch(model)):
        problems.append(
            f"{model}: neither a folder with a model (config.json), nor a hub id like "
            "Qwen/Qwen3-8B, nor a URL"
        )
    on_gpu = Path("/dev/nvidiactl").exists() and importlib.util.find_spec("vllm") is not None
    kind = options.engine or ("vllm" if on_gpu else "transformers")
    engine = {"kind": kind, "model": str(places[0].absolute()) if places else model}
    return engine if options.yarn is None else {**engine, "yarn_factor": options.yarn}


def _endpoint(address: str, options: Options, problems: list[str]) -> dict[str, Any]:
    for name, value in (("engine", options.engine), ("yarn", options.yarn)):
        if value is not None:
            problems.append(f"--{name}: an endpoint decides that itself")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(f"{address}: a URL must start with http:// or https://")
    if parts.username or parts.password or parts.query:
        problems.append("the URL must hold no user, password or query: see --api-key-env")
    url = address.rstrip("/") + ("/v1" if parts.path in ("", "/") else "")
    in_a_block = any(o.startswith("engine.api_key_block=") for o in options.overrides)
    key = os.environ.get(options.api_key_env, "")
    if not key and not _is_local(parts.hostname or "") and not in_a_block:
        problems.append(f"{url} needs a key: set the environment variable {options.api_key_env}")
    if in_a_block and not options.served:
        problems.append("with a key in a Prefect block, name the model by --model")
    if problems:
        return {}
    variable = options.api_key_env if key else ""
    model = options.served or _only_model(url, key)
    return {"kind": "openai", "model": model, "base_url": url, "api_key_env": variable}


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _only_model(url: str, key: str) -> str:
    from training.engines.endpoint import served_models

    served = served_models(url, key)
    if len(served) != 1:
        names = ", ".join(served) or "no model"
        raise ConfigError([f"{url} serves {names}: choose one by --model"])
    return served[0]
