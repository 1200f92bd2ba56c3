"""Room for an answer: what the positions of a model leave of `max_tokens` behind a prompt."""

import sys
from typing import Any


def positions_of(config: Any, yarn_factor: float | None = None) -> int | None:
    """Tokens of prompt and answer that a model can place; None where its config does not say."""
    trained = getattr(config, "max_position_embeddings", None)
    return int(trained * (yarn_factor or 1)) if trained else None


class Room:
    """Tokens that an answer may have; that a model ends answers early is said, once."""

    def __init__(self, model: str, positions: int | None) -> None:
        self.model, self.positions = model, positions
        self._said = False

    def after(self, prompt: int, max_tokens: int) -> int:
        """Behind a prompt of so many tokens; 0: the prompt alone fills the model's context."""
        if self.positions is None:
            return max_tokens
        room = max(0, min(max_tokens, self.positions - prompt))
        if room < max_tokens and not self._said:
            self._said = True
            print(
                f"{self.model} has {self.positions:,} positions: after a prompt of {prompt:,} "
                f"tokens an answer ends at {room:,}, not at max_tokens={max_tokens:,}",
                file=sys.stderr,
            )
        return room


def check_room(positions: int | None, prompt: int, max_tokens: int) -> None:
    """Raise ValueError where the longest prompt leaves less than `max_tokens` for its answer.

    In RL no answer may end early for want of positions: it would be paid as one that is too long.
    """
    if positions is not None and prompt + max_tokens > positions:
        raise ValueError(
            f"the longest prompt and its answer need {prompt:,} + {max_tokens:,} = "
            f"{prompt + max_tokens:,} positions and the model has {positions:,}: lower max_tokens "
            f"to {max(0, positions - prompt):,} or max_prompt_tokens, or start from a model with "
            "more (base.positions)"
        )
