"""Distill from a served model, as a stage of a run: `python asking_stage.py PROBLEMS STORE URL N`.

N is how often a request is tried again, which changes how long the stage waits and no result.
Prints what the stage published; exit code 1 and one line when the endpoint failed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from configs.settings.data import SampleSettings  # noqa: E402
from configs.settings.engines import EngineRuntime, EngineSettings, Sampling  # noqa: E402
from tasks.answers.distill import distill  # noqa: E402
from tasks.stage.run import Run, active  # noqa: E402
from tasks.store.store import Artifact, Store  # noqa: E402
from training.engines.interface import EngineError  # noqa: E402

SAMPLES, TOKENS = 4, 48


def main(problems: str, store: str, url: str, retries: str) -> int:
    engine = EngineSettings(
        kind="openai", model="tiny-teacher", base_url=url, api_key_env="",
        runtime=EngineRuntime(concurrency=4, max_retries=int(retries)),
    )  # fmt: skip
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=TOKENS)
    settings = SampleSettings(samples_per_prompt=SAMPLES, engine=engine, sampling=sampling)
    with active(Run(store=Store(Path(store)))):
        try:
            made = distill(Artifact.of_folder(Path(problems)), settings=settings)
        except EngineError as error:
            print(error)
            return 1
    print(made.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
