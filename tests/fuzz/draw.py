"""Structured values out of a fuzzer's bytes: the same bytes always give the same value."""

from typing import Any

WORDS = (
    "", "a", "x", "kind", "cases", "stdin", "call", "assert", "checker", "input", "output",
    "inputs", "outputs", "fn_name", "code", "args", "testtype", "functional", "base_input",
    "plus_input", "canonical_solution", "entry_point", "test_code", "metadata", "func_name",
    "problem", "answer", "tests", "role", "user", "content", "\\boxed{7}", "assert f(1) == 2",
    "def f(x): pass", "def check(candidate): assert candidate(1) == 2", "2024-01-01",
    "time_limit_s", "memory_mb", "<think>", "</think>", "```python\n", "```", "\ud800", "\x00",
    "\u2028", "\u3164", "../../etc/passwd", "é", "e\u0301", "[1]", "{", "null", "NaN",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"), 1e-320, True,
)  # fmt: skip
PIECES = (
    "\\boxed{", "\\fbox{", "}", "{", "\\boxed 7", "\\frac", "\\dfrac{1}{2}", "\\sqrt",
    "\\text{cm}", "\\left(", "\\right)", "\\pm", "\\infty", "\\cup", "[0,1)", "\\begin{pmatrix}",
    "\\end{pmatrix}", "&", "\\\\", "\\ldots", "1,000", "0.1666\\ldots", "0.\\overline{3}",
    "3 \\frac{1}{2}", "50\\%", "30^\\circ", "x = 3", "x < 1", "\\le", "1011_2", "(A)",
    "5 \\text{ m}", "e^{i\\pi}", "²", "½", "٣", "10^{10^{10}}", "2!", "\\binom{5}{2}", " or ",
    "<think>", "</think>", "```python\n", "```\n", "~~~", "print(1)", "\n", " ", "\t", "\r", "0",
    "7", "9" * 40, "-", "+", ".", "e9", "99e999999", "$",
)  # fmt: skip


class Draw:
    """Reads choices from bytes; when they run out every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1] if self._place <= len(self._data) else 0

    @property
    def left(self) -> int:
        return max(len(self._data) - self._place, 0)

    def rest(self) -> str:
        """What is left as text, lone surrogates included."""
        text = self._data[self._place :].decode("utf-8", "surrogateescape")
        self._place = len(self._data)
        return text

    def text(self) -> str:
        """A known word, or a few characters of the bytes."""
        kind = self.byte()
        if kind < 200:
            return WORDS[kind % len(WORDS)]
        size = self.byte() % 24
        part = self._data[self._place : self._place + size]
        self._place += size
        return part.decode("utf-8", "replace")

    def pieces(self, most: int = 24) -> str:
        """Fragments of answers, one after the other."""
        found: list[str] = []
        while self.left and len(found) < most:
            kind = self.byte()
            if kind == 255:
                break
            found.append(PIECES[kind % len(PIECES)] if kind < 225 else chr(self.byte() + 32))
        return "".join(found)

    def value(self, depth: int = 4) -> Any:
        """A JSON value, also of the kinds that JSON itself has no word for."""
        kind = self.byte() % 8
        if kind < 2 and depth:
            return [self.value(depth - 1) for _ in range(self.byte() % 4)]
        if kind < 5 and depth:
            return {self.text(): self.value(depth - 1) for _ in range(self.byte() % 6)}
        if kind == 5:
            return NUMBERS[self.byte() % len(NUMBERS)]
        return None if kind == 6 and self.byte() % 4 == 0 else self.text()
