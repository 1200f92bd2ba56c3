"""The scripted teacher: answers to the generated problems, sometimes wrong on purpose."""

import random
from collections.abc import Iterable, Iterator

from ...eval.families import by_example, countdown
from ...eval.records import Sample
from .interface import Engine, EngineError, Request

FAMILIES = (countdown, by_example)


class ScriptedEngine(Engine):
    """Answers prompts of `eval.families`, sometimes wrong, by the seed of each request alone."""

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Tokens are words and symbols here. Raises EngineError at a prompt of no family."""
        for request in requests:
            family = next((f for f in FAMILIES if f.parse(request.prompt)), None)
            if family is None:
                fix = "use another engine for problems that are not generated"
                raise EngineError(
                    f"the scripted teacher cannot read {request.prompt[:60]!r}: {fix}"
                )
            rate = self.settings.source_error_rates.get(request.part, self.settings.error_rate)
            teacher = self.settings.model_copy(update={"error_rate": rate})
            text = family.teach(random.Random(request.seed), request.prompt, teacher)
            prompt_tokens, tokens = len(request.prompt.split()), len(text.split())
            model = self.settings.model or "scripted"
            yield request.answered(model, text, "stop", prompt_tokens, tokens)
