"""From a model's text to the answer that is judged: after the think block, boxed or fenced
(§3.2.4). Everything here is linear in the length of the text."""

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_EMPTY_BLOCK = re.compile(rf"\s*+{THINK_OPEN}\s*+{THINK_CLOSE}")
_BOX_TOKEN = re.compile(r"(\\(?:boxed|fbox)\s*\{)|\\boxed\s++([-+]?[\w./]++)|\\.|([{}])", re.DOTALL)
_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_SAYS_NOTHING = re.compile(  # between two boxes: layout, `or`, `and $x =`
    r"(?:[\s$,;.:/&*=(){}]|\\[\s,;:!()\[\]\\]|\\(?:text|mathrm|q?quad|lor|land)(?![a-z])|或者?|和|与"
    r"|(?i:\b(?:or|and|maybe|perhaps|possibly|alternatively|else|also)\b)"
    r"|[A-Za-z]\w{0,9}+(?=\s*=))*+"
)
# Possessive quantifiers (*+) keep hostile texts linear.
_FENCE = re.compile(  # on a line of its own, or, where it is tagged python, behind other text
    r"^(?:[ \t]*+|.*?[^`\n](?=`{3,}+[ \t]*+(?i:python3?|py)[ \t\r]*+$))"
    r"(`{3,}+|~{3,}+)[ \t]*+([^\n`]*+)$",
    re.MULTILINE,
)
# What stands behind a fence that closes: `</answer>`, `<|im_end|>`, a full stop.
_END_OF_FENCE = r"(?:[ \t]*+(?:</?\w++>|<[|\uff5c][^|\uff5c\s]++[|\uff5c]>))*+[ \t\r.]*+"
_CLOSES = re.compile(_END_OF_FENCE)
_LATE_FENCE = re.compile(rf"(?<!`)`{{3,}}+{_END_OF_FENCE}$", re.MULTILINE)
_PYTHON = re.compile(r"(?:python|pypy|py)-?3?(?:\.\d+)?(?=[:,={]|$)")
_STATEMENT = re.compile(
    r"^[ \t]*+(?:import |from \S+ import |def |class )|\b(?:print|input)\s*\(|\bsys\.std",
    re.MULTILINE,
)


class Extracted(NamedTuple):
    """`answer` is None when there is none, and then `reason` says why."""

    answer: str | None
    reason: str = ""


_NOT_CLOSED = Extracted(None, "truncated: the think block is not closed")


def writable(text: str) -> str:
    """The text with a `?` for what no file can hold: half a surrogate pair, from a JSON escape."""
    return text.encode("utf-8", "replace").decode()


def has_closed_think(text: str) -> bool:
    """Exactly one well-formed think block, and only white space before it. An empty one, as
    templates write it, is closed, also where a model writes a block or an end more."""
    opened, closed = text.count(THINK_OPEN), text.count(THINK_CLOSE)
    if _EMPTY_BLOCK.match(text):
        return opened <= closed <= 2 and after_think(text) is not None
    return text.lstrip().startswith(THINK_OPEN) and opened == closed == 1


def after_think(text: str) -> str | None:
    """What follows the last `</think>`, or all of a text without tags; None: a block stays open."""
    answer = text.rpartition(THINK_CLOSE)[2]
    return None if THINK_OPEN in answer else answer


def extract_boxed(text: str) -> Extracted:
    r"""The content of the last `\boxed{…}` or `\fbox{…}` after the think block. Boxes between which
    nothing is said are one answer, the list of their contents."""
    answer = after_think(text)
    if answer is None:
        return _NOT_CLOSED
    # One pass with a stack of open braces, so that nested and unclosed boxes cost O(n).
    open_braces: list[tuple[int, int]] = []  # where a box and its content start; -1 without box
    boxes: list[tuple[int, int, int, int]] = []  # and where they end; none lies in another
    for token in _BOX_TOKEN.finditer(answer):
        if token[1]:
            open_braces.append(token.span())
        elif token[2]:  # as in plain TeX: \boxed 7
            boxes.append((token.start(), *token.span(2), token.end()))
        elif token[3] == "{":
            open_braces.append((-1, -1))
        elif token[3] == "}" and open_braces:
            box, content = open_braces.pop()
            while box >= 0 and boxes and boxes[-1][0] > box:
                boxes.pop()
            if box >= 0:
                boxes.append((box, content, *token.span()))
    if any(content > (boxes[-1][2] if boxes else -1) for _, content in open_braces):
        return Extracted(None, "truncated: the last box is not closed")
    if not boxes:
        return Extracted(None, "no boxed answer")
    first = len(boxes) - 1
    while first and _SAYS_NOTHING.fullmatch(answer, boxes[first - 1][3], boxes[first][0]):
        first -= 1
    contents = [_BOX_COMMAND.sub("", answer[b[1] : b[2]]).strip() for b in boxes[first:]]
    if not contents[-1]:
        return Extracted(None, "the last box is empty")
    return Extracted(r"\text{ and }".join(dict.fromkeys(filter(None, contents))))


def extract_program(text: str) -> Extracted:
    """The last fenced Python program after the think block: tagged python or py, or bare. A bare
    fence after a tagged one counts only when it reads like a program, for it may be sample output.
    """
    answer = after_think(text)
    if answer is None:
        return _NOT_CLOSED
    tagged = bare = None
    unclosed = False
    for language, body in _fenced(answer):
        is_python = _PYTHON.match(language) is not None
        if body is None:
            unclosed = unclosed or is_python or not language
        elif is_python:
            tagged, bare, unclosed = body, None, False
        elif not language and (tagged is None or _STATEMENT.search(body)):
            bare, unclosed = body, False
    program = bare if bare is not None else tagged
    if unclosed:
        return Extracted(None, "truncated: the last fence is not closed")
    if program is None:
        return Extracted(None, "no fenced program")
    if not program.strip():
        return Extracted(None, "the last fence is empty")
    return Extracted(textwrap.dedent(program))


def _fenced(text: str) -> Iterator[tuple[str, str | None]]:
    """(language, body) of every fence in order; the body of a fence that never closes is None.
    A bare one with nothing in it is one too many, and none."""
    fences = list(_FENCE.finditer(text))
    i = 0
    while i < len(fences):
        opening, i = fences[i], i + 1
        while i < len(fences) and not (_closes(fences[i], opening) or _language(fences[i])):
            i += 1
        closed = i < len(fences) and _closes(fences[i], opening)
        end = fences[i].start() if i < len(fences) else len(text)
        if closed:
            i += 1
        else:  # models sometimes close the fence at the end of the last line of code
            late = _LATE_FENCE.search(text, opening.end(), end)
            closed, end = late is not None, late.start() if late else end
        language, body = _language(opening), text[opening.end() + 1 : end]
        if closed or language or not _CLOSES.fullmatch(body.strip()):
            yield language, body if closed else None


def _language(fence: re.Match[str]) -> str:
    return fence[2].strip().lower().strip("{.}").partition(" ")[0]


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    return fence[1].startswith(opening[1]) and _CLOSES.fullmatch(fence[2]) is not None
