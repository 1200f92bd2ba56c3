"""The benchmarks that `klear eval` knows by name: which problems, how often, in which words.

A source is one of configs/catalogue.toml. Names beyond Table 1 are what post-training reports
usually give. Models of others are asked with an instruction, as the assessment of DeepSeek-R1
does, which the paper follows; our own checkpoints learn from bare problems and are asked so.
"""

from collections.abc import Mapping

from configs.base import Settings
from configs.engines import EngineSettings
from configs.evaluate_stage import PAPER_PROTOCOLS, BenchmarkProtocol, EvaluateSettings

WITH_FORMAT = "{prompt}\n\n{format}"
_MORE = (
    BenchmarkProtocol(name="math500", k=4),
    BenchmarkProtocol(name="livecodebench", k=8, official=True),
    BenchmarkProtocol(
        name="lcb_v5_caption", source="livecodebench", k=8, official=True,
        date_from="2024-08-01", date_to="2025-02-01",
    ),
)  # fmt: skip
FOLDERS: Mapping[str, tuple[str, ...]] = {"hmmt25": ("hmmt25", "hmmt_feb_2025")}
"""Other folder names under which files of a source are found below `--root`."""


def named_protocols() -> dict[str, BenchmarkProtocol]:
    """Benchmark name → its protocol, the question with the instruction."""
    return {
        p.name: p.model_copy(update={"question": WITH_FORMAT, "source": p.source or p.name})
        for p in (*PAPER_PROTOCOLS, *_MORE)
    }


class Evaluation(Settings):
    """One `klear eval`: who answers what, under which protocol."""

    engine: EngineSettings
    evaluate: EvaluateSettings
