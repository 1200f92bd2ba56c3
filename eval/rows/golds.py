r"""What a gold answer allows: that nobody can match it, or that guessing does. A sentence, a
reference to a proof or a symbol that the problem never names (`S_{n}`) is no gold: all answers
would be wrong. Yes or no, true or false, and the letter of a choice are matched by a coin or a die.
"""

import re
from math import comb

from ..math_answers.notation.spelling import spell
from ..math_answers.notation.words import TEXT
from ..records import Problem, golds_of

_NO_ANSWER = re.compile(
    r"(?:(?:proof|prove[nd]?|show)\b.*|q\.?e\.?d|(?:(?:see|refer to|given in|as) )?(?:the )?"
    r"(?:above |attached |following )?(?:below|solution|explanation|figure|image|diagram|graph)s?"
    r"(?: (?:above|below))?|omitted|not ?found|n/?a|nan|null|unknown|missing|to ?do|tbd|"
    r"(?:no |not )answer(?: (?:provided|given|found))?|answers? (?:may |will )?var(?:y|ies)|"
    r"drawing|sketch|略|证明略?|见解析|[?…]+|\.{3,})\W*",
    re.IGNORECASE | re.DOTALL,
)
_BINARY = {
    *("yes", "no", "true", "false", "correct", "incorrect", "right", "wrong", "y", "n"),
    *("是", "否", "对", "错", "正确", "错误", "不是", "√", "×", r"\checkmark", r"\times"),
}
_LABEL = re.compile(r"(?<![A-Za-z])([A-Ja-j])(?=\s*[).:、}])")
_LETTER = re.compile(r"\W*([A-Ja-j])\W*")
_COMMAND = re.compile(r"\\[A-Za-z]+|\$[^$]*\$|\\\(.*?\\\)")
_WORD = re.compile(r"(?<![A-Za-z\\_^])[A-Za-z]{2,}(?![A-Za-z(])")
_TELLS = re.compile(
    r"\b(?:is|are|was|were|be|because|since|therefore|hence|then|thus|that|which|whose|such|there|"
    r"it|we|can|cannot|has|have|does|must|will|if|so|by|they|its|this|these)\b",
    re.IGNORECASE,
)
_NAMES_A_VALUE = re.compile(
    r"(?:there (?:is|are|exists?) )?no\b|none\b|all\b|any\b|every\b|does not\b|never\b|infinite|"
    r"yes\b|not\b|always\b|when\b|for\b|if\b",
    re.IGNORECASE,
)
_SENTENCE, _LONG_SENTENCE = 6, 12
"""Words of a gold that tells something, and of any other, from which nobody hits them."""
_SUBSCRIPTED = re.compile(r"(?<![\\A-Za-z])([A-Za-z])_\{?([A-Za-z])\}?(?![A-Za-z])")


def unjudgeable(problem: Problem) -> str:
    """Why no answer can match the gold of a math problem; empty where one can."""
    if problem.domain != "math" or problem.numbers is not None or not problem.judgeable:
        return ""
    golds = golds_of((problem.answer or "").strip())
    return next(filter(None, (_no_match(gold, problem.prompt) for gold in golds)), "")


def _no_match(gold: str, prompt: str) -> str:
    plain = re.sub(TEXT, r"\1", gold).strip("$ .")
    if _NO_ANSWER.fullmatch(plain):
        return f"the gold is no answer: {gold[:60]!r}"
    names = _NAMES_A_VALUE.match(plain) or not _TELLS.search(plain)
    least = _LONG_SENTENCE if names else _SENTENCE
    if _words(plain) >= least and _words(re.sub(TEXT, r"\1", spell(gold).body)) >= least:
        return f"the gold is a sentence, which no answer repeats: {gold[:60]!r}"
    value = gold.rpartition("=")[2]
    for letter, index in _SUBSCRIPTED.findall(value):
        if not re.search(rf"(?<![A-Za-z]){letter}\s*_?\s*\{{?\s*{index}", prompt):
            return f"the gold depends on {letter}_{index}, which the problem does not name"
    return ""


def _words(text: str) -> int:
    return len(_WORD.findall(_COMMAND.sub(" ", text)))


def chance_of_guessing(problem: Problem) -> float:
    """How often somebody who guesses matches the gold: 1/2 of yes or no, one of the choices that
    the prompt letters (of four where it does not), 0 of any other gold."""
    if problem.domain != "math":
        return 0.0
    return max(_chance(gold, problem.prompt) for gold in golds_of(problem.answer or ""))


def _chance(answer: str, prompt: str) -> float:
    gold = re.sub(TEXT, r"\1", answer).strip().strip("$.。 ").lower()
    if gold in _BINARY:
        return 0.5
    if match := _LETTER.fullmatch(gold):
        lettered = {label.upper() for label in _LABEL.findall(prompt)}
        several = {"A", "B", match[1].upper()} <= lettered
        return 1 / len(lettered) if several else 1 / 4
    return 0.0


def tail(passed: int, answers: int, chance: float) -> float:
    """Probability that a guesser passes so often or more: the upper tail of the binomial."""
    at_least = range(passed, answers + 1)
    return sum(comb(answers, k) * chance**k * (1 - chance) ** (answers - k) for k in at_least)
