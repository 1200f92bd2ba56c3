"""What the end of an answer says: a refused request is no answer, and neither is cut thinking."""

from typing import Any

from ..answers import THINK_CLOSE, THINK_OPEN
from ..records import Sample, Score

CUT_UNTAGGED = {
    "length": "truncated: it was cut at max_tokens before an answer came",
    "refused": "refused: the endpoint cut it before an answer came",
}
ONLY_REASONING = "no answer: the reply ended with its reasoning"
NO_ANSWERS = (*CUT_UNTAGGED.values(), ONLY_REASONING)
MACHINE_FAILED = "the judge failed: "
"""Begins the reason of an unscored answer whose judging, not whose form or gold, went wrong."""
UNSCORED: dict[str, Any] = {
    **dict.fromkeys(("reward", "correct", "pass_rate", "answer")), "verdict": "IE", "seconds": 0.0,
}  # fmt: skip


def cut_untagged(sample: Sample) -> bool:
    """Cut, with no think tags, so perhaps still thinking: its end never came."""
    tags = THINK_OPEN in sample.text or THINK_CLOSE in sample.text
    return sample.finish_reason in CUT_UNTAGGED and not tags


def judged_text(sample: Sample) -> str:
    if sample.finish_reason == "error":
        return ""
    return f"{THINK_OPEN}\n{sample.text}" if cut_untagged(sample) else sample.text


def by_its_end(score: Score, sample: Sample) -> Score:
    """The score of `judged_text`, with the reason that the end of the sample gives."""
    if sample.finish_reason == "error":  # the text is what an endpoint said
        reason = "the engine gave no answer" + f": {sample.text}" * bool(sample.text)
        return score.model_copy(update={**UNSCORED, "reason": reason})
    if cut_untagged(sample):
        reason = CUT_UNTAGGED[sample.finish_reason]
    elif sample.finish_reason == "empty" and sample.text.strip():
        reason = ONLY_REASONING
    else:
        return score
    return score.model_copy(update={"reason": reason}) if score.verdict == "WA" else score
