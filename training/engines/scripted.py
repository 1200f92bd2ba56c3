"""The scripted teacher of the generated families: no model, sometimes wrong."""

import random
from collections.abc import Iterable, Iterator
from typing import Self

from configs.engines import EngineSettings
from eval.families import by_example, countdown
from eval.records import Sample
from training.engines.interface import EngineError, Request

FAMILIES = (countdown, by_example)


class ScriptedEngine:
    """Answers prompts of `eval.families`; each answer depends on its request's seed alone."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Token counts are words and symbols: the teacher has no tokenizer.

        Raises EngineError at a prompt that belongs to no family.
        """
        for request in requests:
            family = next((f for f in FAMILIES if f.parse(request.prompt)), None)
            if family is None:
                raise EngineError(
                    f"the scripted teacher cannot read {request.prompt[:60]!r}: "
                    "use another engine for problems that are not generated"
                )
            teacher = self._on(request.part)
            text = family.teach(random.Random(request.seed), request.prompt, teacher)
            yield Sample(
                problem_id=request.problem_id,
                index=request.index,
                model=self.settings.model or "scripted",
                text=text,
                prompt_tokens=len(request.prompt.split()),
                completion_tokens=len(text.split()),
            )

    def _on(self, source: str) -> EngineSettings:
        """The teacher as it is on the problems of one source."""
        slips = self.settings.source_error_rates.get(source, self.settings.error_rate)
        return self.settings.model_copy(update={"error_rate": slips})
