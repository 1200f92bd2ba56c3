"""From the words of `klear eval` to what is to be done; every mistake found before any work."""

import argparse
import importlib.util
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from configs.evaluate_stage import BenchmarkProtocol
from configs.evaluations import WITH_FORMAT, Evaluation, named_protocols
from configs.explain import ConfigError, explain, nearest
from configs.overrides import apply_override
from eval.row_files import SUFFIXES

INSTEAD = {
    "engine": "--engine",
    "engine_runtime": "--set engine.runtime.…",
    "yarn_factor": "--yarn",
}
"""Settings of the stage `evaluate` that `klear eval` does not read, and what it reads."""
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class EvalRequest:
    """A checked `klear eval`."""

    evaluation: Evaluation
    files: dict[str, Path]
    """Source → local file; the others come from the hub."""
    limit: int | None
    out: Path | None


def request_of(args: argparse.Namespace) -> EvalRequest:
    """Raises ConfigError with every mistake, EngineError when an endpoint cannot be reached."""
    problems: list[str] = []
    files = _files(args.files, problems)
    protocols = _protocols(args, files, problems)
    if args.limit is not None and args.limit < 1:
        problems.append(f"--limit {args.limit}: at least 1")
    if args.root is not None and not args.root.is_dir():
        problems.append(f"--root {args.root}: no such folder")
    engine = _engine(args, problems)
    if problems:
        raise ConfigError(problems)
    data: dict[str, Any] = {
        "engine": engine,
        "evaluate": {"protocols": [p.model_dump() for p in protocols], "sampling": _sampling(args)},
    }
    if args.seed is not None:
        data["evaluate"]["seed"] = args.seed
    for text in args.overrides:
        apply_override(data, text)
    try:
        evaluation = Evaluation.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, Evaluation)) from error
    if unread := INSTEAD.keys() & evaluation.evaluate.model_fields_set:
        raise ConfigError([f"evaluate.{name}: use {INSTEAD[name]}" for name in sorted(unread)])
    sources = {p.source for p in protocols} - set(files)
    if args.root is not None:
        from tasks.benchmark_files import find_below

        try:
            files |= {name: find_below(args.root, name)[0] for name in sorted(sources)}
        except FileNotFoundError as error:
            raise ConfigError([str(error)]) from error
    return EvalRequest(evaluation, files, args.limit, args.out)


def _files(texts: list[str], problems: list[str]) -> dict[str, Path]:
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
    args: argparse.Namespace, files: dict[str, Path], problems: list[str]
) -> list[BenchmarkProtocol]:
    """The benchmarks of --bench; data files among them join `files`."""
    known, found = named_protocols(), []
    for name in dict.fromkeys(filter(None, (n.strip() for n in args.bench.split(",")))):
        if name in known:
            found.append(known[name])
        elif name.endswith(SUFFIXES):
            if not Path(name).is_file():
                problems.append(f"--bench {name}: no such file")
                continue
            stem = Path(name).name.partition(".")[0]
            files[stem] = Path(name)
            found.append(BenchmarkProtocol(name=stem, source=stem, k=1, question=WITH_FORMAT))
        elif name in files:
            found.append(BenchmarkProtocol(name=name, source=name, k=1, question=WITH_FORMAT))
        else:
            names = ", ".join(known)
            problems.append(
                f"--bench {name}: no such benchmark{nearest(name, known)} (there are {names}; or "
                "name a data file)"
            )
    if not found and not problems:
        problems.append("--bench is empty: name at least one benchmark")
    return [p.model_copy(update=_changes(args, problems)) for p in found]


def _changes(args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if args.k is not None:
        changes["k"] = args.k
        if args.k < 1:
            problems.append(f"--k {args.k}: at least 1")
    if args.question is not None:
        changes["question"] = args.question
    return changes


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
    return {n: v for n in names if (v := getattr(args, n)) is not None}


def _engine(args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    if "://" in args.model:
        return _endpoint(args, problems)
    if args.served:
        problems.append("--model names a model at an endpoint; here MODEL is the model itself")
    kind = args.engine or ("vllm" if _has_gpu_and_vllm() else "transformers")
    model = _checkpoint(args.model, problems)
    engine = {"kind": kind, "model": model}
    return engine if args.yarn is None else {**engine, "yarn_factor": args.yarn}


def _checkpoint(text: str, problems: list[str]) -> str:
    """A folder with a model, or one of the store with the model in `checkpoint`, or a hub id."""
    folder = Path(text).expanduser()
    for candidate in (folder, folder / "checkpoint"):
        if (candidate / "config.json").is_file():
            return str(candidate.absolute())
    if folder.exists() or not HUB_ID.fullmatch(text):
        problems.append(
            f"{text}: neither a folder with a model (config.json), nor a hub id like "
            "Qwen/Qwen3-8B, nor a URL"
        )
    return text


def _has_gpu_and_vllm() -> bool:
    return Path("/dev/nvidiactl").exists() and importlib.util.find_spec("vllm") is not None


def _endpoint(args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    for option in ("engine", "yarn"):
        if getattr(args, option) is not None:
            problems.append(f"--{option}: an endpoint decides that itself")
    parts = urlsplit(args.model)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(f"{args.model}: a URL must start with http:// or https://")
    if parts.username or parts.password or parts.query:
        problems.append("the URL must hold no user, password or query: see --api-key-env")
    url = args.model.rstrip("/") + ("/v1" if parts.path in ("", "/") else "")
    variable = args.api_key_env
    in_a_block = any(o.startswith("engine.api_key_block=") for o in args.overrides)
    if not os.environ.get(variable):
        if not _is_local(parts.hostname or "") and not in_a_block:
            problems.append(f"{url} needs a key: set the environment variable {variable}")
        variable = ""
    if in_a_block and not args.served:
        problems.append("with a key in a Prefect block, name the model by --model")
    if problems:
        return {}
    model = args.served or _only_model(url, os.environ.get(variable, ""))
    return {"kind": "openai", "model": model, "base_url": url, "api_key_env": variable}


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _only_model(url: str, key: str) -> str:
    from training.engines.endpoint_models import served_models

    served = served_models(url, key)
    if len(served) != 1:
        names = ", ".join(served) or "no model"
        raise ConfigError([f"{url} serves {names}: choose one by --model"])
    return served[0]
