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

from configs.settings.evaluation import WITH_FORMAT, BenchmarkProtocol, Evaluation, named_protocols
from configs.settings.explain import ConfigError, explain, nearest
from configs.settings.overrides import apply_override
from eval.row_files import SUFFIXES

INSTEAD = {
    "engine": "--engine",
    "engine_runtime": "--set engine.runtime.…",
    "yarn_factor": "--yarn",
}
"""Settings of the stage `evaluate` that `klear eval` does not read, and what it reads."""
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
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
    problems = [f"--{name} {value}: at least 1" for name in ("k", "limit")
                if (value := getattr(args, name)) is not None and value < 1]  # fmt: skip
    if args.root is not None and not args.root.is_dir():
        problems.append(f"--root {args.root}: no such folder")
    files = _files(args.files, problems)
    protocols = _protocols(args, files, problems)
    engine = (_endpoint if "://" in args.model else _checkpoint)(args, problems)
    if problems:
        raise ConfigError(problems)
    told = {n: v for n in SAMPLING if (v := getattr(args, n)) is not None}
    scoring = {"protocols": [p.model_dump() for p in protocols], "sampling": told}
    data: dict[str, Any] = {"engine": engine, "evaluate": scoring}
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
    if args.root is not None:
        from tasks.models.benchmark_files import find_below

        try:
            for source in sorted({p.source for p in protocols} - set(files)):
                files[source] = find_below(args.root, source)[0]
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
    for name in dict.fromkeys(filter(None, map(str.strip, args.bench.split(",")))):
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
    told = {n: v for n in ("k", "question") if (v := getattr(args, n)) is not None}
    return [p.model_copy(update=told) for p in found]


def _checkpoint(args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """A folder with a model, or one of the store with the model in `checkpoint`, or a hub id."""
    if args.served:
        problems.append("--model names a model at an endpoint; here MODEL is the model itself")
    folder = Path(args.model).expanduser()
    places = [f for f in (folder, folder / "checkpoint") if (f / "config.json").is_file()]
    if not places and (folder.exists() or not HUB_ID.fullmatch(args.model)):
        problems.append(
            f"{args.model}: neither a folder with a model (config.json), nor a hub id like "
            "Qwen/Qwen3-8B, nor a URL"
        )
    on_gpu = Path("/dev/nvidiactl").exists() and importlib.util.find_spec("vllm") is not None
    kind = args.engine or ("vllm" if on_gpu else "transformers")
    engine = {"kind": kind, "model": str(places[0].absolute()) if places else args.model}
    return engine if args.yarn is None else {**engine, "yarn_factor": args.yarn}


def _endpoint(args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    problems += [f"--{option}: an endpoint decides that itself" for option in ("engine", "yarn")
                 if getattr(args, option) is not None]  # fmt: skip
    parts = urlsplit(args.model)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(f"{args.model}: a URL must start with http:// or https://")
    if parts.username or parts.password or parts.query:
        problems.append("the URL must hold no user, password or query: see --api-key-env")
    url = args.model.rstrip("/") + ("/v1" if parts.path in ("", "/") else "")
    in_a_block = any(o.startswith("engine.api_key_block=") for o in args.overrides)
    key = os.environ.get(args.api_key_env, "")
    if not key and not _is_local(parts.hostname or "") and not in_a_block:
        problems.append(f"{url} needs a key: set the environment variable {args.api_key_env}")
    if in_a_block and not args.served:
        problems.append("with a key in a Prefect block, name the model by --model")
    if problems:
        return {}
    variable = args.api_key_env if key else ""
    model = args.served or _only_model(url, key)
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
