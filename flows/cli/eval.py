"""`klear eval MODEL_OR_URL --bench aime24,lcb_v6 --k 8`: any model, any benchmark, one protocol.

Stages of the store, without a server: each benchmark is collected once, then the model is scored.
The same command goes on after a kill and prints finished scores at once.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter

from ...configs.loading import load_group
from ...configs.machine import load_machine
from ...configs.settings.engines import url_without_secret
from ...configs.settings.evaluation import (
    WITH_FORMAT,
    BenchmarkProtocol,
    Evaluation,
    named_protocols,
)
from ...configs.settings.explain import ConfigError, nearest
from ...configs.settings.sources import Source
from ...eval.records.row_files import SUFFIXES
from ...eval.rows.reading import named_files, refuse_early, source_of
from ...tasks.engine.child import ChildFailed
from ...training.engines.interface import EngineError

KEY = "OPENAI_API_KEY"  # the variable that holds an endpoint's key


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """How to ask and how to score."""

    bench: str
    """Names or data files, separated by commas: aime24,lcb_v6,mine.jsonl."""
    fields: str = ""
    """Fields of the files, where they have to be named: prompt=Question,gold="Correct Answer"."""
    use: str = ""
    """Catalogue entry whose fields the files have."""
    k: int | None = None
    """Samples a problem; default: the benchmark's own (the paper's 64 or 8), 1 for a file."""
    limit: int | None = None
    """The first N problems of each benchmark only."""
    served: Annotated[str, Parameter("--model")] = ""
    """Model to ask at an endpoint."""
    force: bool = False
    """Ask and score again what is in the store already."""
    overrides: Annotated[tuple[str, ...], Parameter("--set")] = ()
    """Any other setting: --set evaluate.sampling.temperature=0.6, --set engine.kind=transformers
    (repeatable)."""


def evaluate(model: str, /, *, options: Options) -> int:
    """Score any model on benchmarks.

    Args:
        model: Checkpoint folder, hub id, or URL of an OpenAI-compatible endpoint.
    """
    try:
        evaluation = settings_of(model, options)
        return _scored(evaluation, _benchmarks(options)[1], options.force)
    except (EngineError, ChildFailed, ValueError) as error:
        print(f"klear eval: {error}", file=sys.stderr)
        return 1


def _scored(evaluation: Evaluation, files: dict[str, Source], force: bool) -> int:
    """Compute what is not in the store yet, and print the scores."""
    from rich.console import Console

    from ...tasks.engine.run import Run, active
    from ...tasks.models import eval_model
    from ...tasks.observe.pages import Cards
    from ...tasks.observe.terminal import Terminal
    from ...tasks.report.results import read_results
    from ...tasks.store.shared import open_store

    named = eval_model.identified(evaluation)
    if named.evaluate.protocols != evaluation.evaluate.protocols:
        print("asked in the words of its training (chat_format.json)", file=sys.stderr)
    evaluation = named
    names = dict.fromkeys(p.source or p.name for p in evaluation.evaluate.protocols)
    sources = [files.get(name) or Source(use=name) for name in names]
    display = Terminal(Console(stderr=True, highlight=False, soft_wrap=True))
    again = frozenset({eval_model.eval_model.name} if force else ())
    store = open_store(load_machine())
    run = Run(store=store, observers=(Cards(store), display), force=again)
    with display.bars, active(run):
        settings = map(eval_model.settings_to_collect, sources)
        collected = [eval_model.benchmark(settings=each) for each in settings]
        for each in collected:
            store.fetch(each)
        read = [line for each in collected for line in eval_model.reading_lines(each)]
        print("\n".join(read), file=sys.stderr, end="\n" if read else "")
        scored = eval_model.eval_model(*collected, settings=evaluation)
        store.fetch(scored)
    print(eval_model.results_text(read_results(scored.folder), scored.metrics, read))
    manifest = store.manifest(scored)
    if manifest.pipeline_run != run.run_id:
        moment = manifest.created[:16].replace("T", " ")
        print(f"cached: asked and scored on {moment} UTC; --force asks again")
    print(f"results: {scored.folder / 'results.json'}")
    return 0


def settings_of(model: str, options: Options) -> Evaluation:
    """What is evaluated. Raises ConfigError, and EngineError when an endpoint cannot be reached."""
    protocols, _ = _benchmarks(options)
    is_endpoint = "://" in model
    if options.served and not is_endpoint:
        raise ConfigError(["--model is for an endpoint"])
    values = {
        "engine": _endpoint(model, options) if is_endpoint else _checkpoint(model),
        "evaluate": {"protocols": [p.model_dump() for p in protocols]},
        "limit": options.limit,
    }
    return load_group(Evaluation, options.overrides, values)


def _benchmarks(options: Options) -> tuple[list[BenchmarkProtocol], dict[str, Source]]:
    """The benchmarks of --bench, and how the files among them are read."""
    published = named_protocols()
    texts = list(dict.fromkeys(filter(None, map(str.strip, options.bench.split(",")))))
    paths = {text: Path(text).absolute() for text in texts if text.endswith(SUFFIXES)}
    if (options.fields or options.use) and not paths:
        raise ConfigError(["--fields and --use say how files are read; --bench names none"])
    names = {str(path): name for name, path in named_files(list(paths.values())).items()}
    files, protocols = dict[str, Source](), list[BenchmarkProtocol]()
    for text in texts:
        if text in paths:
            if not paths[text].is_file():
                raise ConfigError([f"--bench {text}: no such file"])
            name = names[str(paths[text])]
            files[name] = source_of(name, paths[text], options.fields, options.use)
            refuse_early(paths[text], files[name])
            protocols.append(BenchmarkProtocol(name=name, source=name, k=1, question=WITH_FORMAT))
        elif text in published:
            protocols.append(published[text])
        else:
            choice = f"there are {', '.join(published)}; or name a file ({', '.join(SUFFIXES)})"
            wrong = f"--bench {text}: no such benchmark{nearest(text, published)} ({choice})"
            raise ConfigError([wrong])
    if not protocols:
        raise ConfigError(["--bench is empty: name at least one benchmark"])
    update = {"k": options.k} if options.k is not None else {}
    return [p.model_copy(update=update) for p in protocols], files


def _checkpoint(model: str) -> dict[str, Any]:
    """A folder with a model, or one of the store with the model in `checkpoint`, or a hub id."""
    folder = Path(model).expanduser()
    places = [f for f in (folder, folder / "checkpoint") if (f / "config.json").is_file()]
    if not places and (folder.exists() or model.count("/") != 1):
        what = "neither a folder with a model (config.json), nor a hub id like Qwen/Qwen3-8B"
        raise ConfigError([f"{model}: {what}, nor a URL"])
    on_gpu = Path("/dev/nvidiactl").exists() and importlib.util.find_spec("vllm") is not None
    kind = "vllm" if on_gpu else "transformers"
    return {"kind": kind, "model": str(places[0].absolute()) if places else model}


def _endpoint(address: str, options: Options) -> dict[str, Any]:
    """An address, and the model that is asked there: the only one, unless it is named."""
    try:
        url_without_secret(address, f"set {KEY}")
    except ValueError as error:
        raise ConfigError([f"the URL {error}"]) from error
    url = address.rstrip("/") + ("/v1" if urlsplit(address).path in ("", "/") else "")
    key = os.environ.get(KEY, "")
    model = options.served
    if not model:
        from ...training.engines.endpoint import served_models

        model, *others = served_models(url, key) or [""]
        if others or not model:
            names = ", ".join([model, *others]) or "no model"
            raise ConfigError([f"{url} serves {names}: choose one by --model"])
    return {"kind": "openai", "base_url": url, "api_key_env": KEY if key else "", "model": model}
