"""The page a run ends with: what came out, how sure it is, and what it was made of."""

from eval.leaderboard import leaderboard_section
from eval.page import Block, Notice, Page, Paragraph
from eval.report_data import agreement_section, contamination_section, funnel_section
from eval.report_protocol import protocol_section
from eval.report_rejected import rejected_section
from eval.report_run import run_section
from eval.report_scores import headline, score_section
from eval.report_training import cost_section, reading_section, training_section
from eval.run_facts import RunFacts
from eval.run_story import RunStory

PAPER_PROFILE = "paper"
SUBTITLE = (
    "From a base model to a reasoning model, after Klear-Reasoner (arXiv 2508.07629): long "
    "chain-of-thought SFT, then GPPO on math and on code."
)
_WHY = {
    "tiny": "A model of less than a million parameters on generated problems: these figures "
    "show that every stage works and learns, and nothing about the method at the paper's scale.",
    "replay": "Recorded answers of other models take the place of the teacher, and the trained "
    "model is tiny: these figures check the pipeline and its judge.",
    "": "The run has no profile label, so nothing says which model and budget stand behind its "
    "figures.",
}
_OTHER = (
    "Another base model, data or budget than the paper's stands behind these figures; in the "
    "leaderboard each row of ours names its profile."
)


def build_page(facts: RunFacts, profile: str, to_read: int, story: RunStory | None = None) -> Page:
    """Everything the run has to say; absent stages leave their sections out.

    `story` is what the run planned and did, where one is known.
    `to_read` is the number of rollouts per RL stage, and of benchmark answers, shown in full.
    """
    blocks: list[Block] = [
        *_label(profile),
        *headline(facts),
        *score_section(facts),
        *leaderboard_section(facts, profile),
        *run_section(story),
        *training_section(facts),
        *funnel_section(facts),
        *rejected_section(facts),
        *contamination_section(facts),
        *agreement_section(facts),
        *reading_section(facts, to_read),
        *protocol_section(facts),
        *cost_section(facts),
    ]
    if not facts.outputs:
        blocks.append(Paragraph("The run left nothing to report."))
    label = f"{profile} profile" if profile else "unlabelled profile"
    return Page(title="Klear", subtitle=SUBTITLE, label=label, blocks=tuple(blocks))


def _label(profile: str) -> list[Block]:
    if profile == PAPER_PROFILE:
        return []
    name = profile or "unlabelled"
    return [
        Notice(f"{name}-profile figures: not comparable to the paper", _WHY.get(profile, _OTHER))
    ]
