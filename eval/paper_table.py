"""Table 1 of Klear-Reasoner (arXiv 2508.07629, §4.1) as data.

Scores are percentages: avg@64 for AIME 2024, AIME 2025 and HMMT Feb 2025, avg@8 for
LiveCodeBench (LCB), at temperature 0.6 and top_p 0.95.
"""

from dataclasses import dataclass

CAPTION = (
    "Table 1 of arXiv 2508.07629: avg@64 on AIME and HMMT, avg@8 on LiveCodeBench, temperature "
    "0.6, top_p 0.95. † evaluated by the paper's authors; other baselines are the figures of the "
    "models' own developers. The paper gives 32K tokens of inference unless marked; some "
    "baselines use 64K or 96K there."
)


@dataclass(frozen=True)
class Column:
    """One benchmark of the table; `name` is the protocol's name in `configs`."""

    name: str
    title: str
    k: int


@dataclass(frozen=True)
class Row:
    """One model; `scores` in percent, one per column."""

    model: str
    scores: tuple[float, ...]
    by_the_authors: tuple[bool, ...] = (False,) * 5
    """† in the paper: the authors' evaluation of somebody else's model."""
    ours: bool = False
    """A checkpoint of the paper itself."""


COLUMNS = (
    Column("aime24", "AIME 2024", 64),
    Column("aime25", "AIME 2025", 64),
    Column("hmmt25", "HMMT Feb 2025", 64),
    Column("lcb_v5", "LCB v5", 8),
    Column("lcb_v6", "LCB v6", 8),
)

_LCB_V6 = (False, False, False, False, True)
_LCB = (False, False, False, True, True)
_HMMT_AND_LCB_V6 = (False, False, True, False, True)

ROWS = (
    Row("AReal-boba-RL-7B", (61.9, 48.3, 29.4, 34.3, 31.0), _LCB_V6),
    Row("MiMo-7B-RL", (68.2, 55.4, 35.7, 57.8, 49.3)),
    Row("Skywork-OR1-7B", (70.2, 54.6, 35.7, 47.6, 42.7)),
    Row("AceReason-Nemotron-1.1-7B", (72.6, 64.8, 42.9, 57.2, 52.1)),
    Row("POLARIS-4B-Preview", (81.2, 79.4, 58.7, 58.5, 53.0), _LCB),
    Row("Qwen3-8B", (76.0, 67.3, 44.7, 57.5, 48.4), _HMMT_AND_LCB_V6),
    Row("Deepseek-R1-0528-Distill-8B", (86.0, 76.3, 61.5, 61.0, 51.6), _LCB),
    Row("OpenReasoning-Nemotron-7B", (84.7, 78.2, 63.5, 65.6, 56.3), _LCB),
    Row("Klear-Reasoner-8B-SFT", (75.6, 70.1, 57.6, 58.5, 49.6), ours=True),
    Row("Klear-Reasoner-8B", (83.2, 75.6, 60.3, 61.6, 53.1), ours=True),
    Row("Klear-Reasoner-8B, 64K budget", (90.5, 83.2, 70.8, 66.0, 58.1), ours=True),
)


def titles() -> dict[str, str]:
    """Protocol name → the title the paper gives that benchmark."""
    return {c.name: c.title for c in COLUMNS}
