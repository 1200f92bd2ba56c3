"""Word n-grams shared between texts and benchmark items, exact and fast in plain Python.

Any window of n words contains a whole block of b = ⌈n/2⌉ words that starts at a multiple of
n−b+1. So a text is first asked only for those blocks, which for odd n tile it: one
`set.isdisjoint` over a `zip` of strided slices, all of it in C. Only a text with a known block
pays for its n-grams. The index holds the words themselves, so no hash collision flags a text.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

Normalisation = Literal["alnum", "whitespace"]
Gram = tuple[str, ...]

_ASCII_WORDS = bytes(
    ord(chr(c).lower()) if c < 128 and chr(c).isalnum() else ord(" ") for c in range(256)
)
_WORD = re.compile(r"[^\W_]+")
_RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070-\u209c]+")


def whitespace_words(text: str) -> list[str]:
    """The published rule (s1, open-r1): lower case, split at white space."""
    return text.lower().split()


def alnum_words(text: str) -> list[str]:
    r"""Lower-case runs of letters and digits: `$\frac{1}{2}$` and `\frac 1 2` are frac 1 2.

    Text beyond ASCII is brought to NFKC first; a superscript or subscript is a word of its own,
    so that x² and x^2 agree.
    """
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode().split()
    spaced = _RAISED.sub(lambda raised: f" {raised[0]} ", text)
    return _WORD.findall(unicodedata.normalize("NFKC", spaced).lower())


NORMALISATIONS: dict[Normalisation, Callable[[str], list[str]]] = {
    "alnum": alnum_words,
    "whitespace": whitespace_words,
}


def ngrams(words: list[str], n: int) -> Iterator[Gram]:
    """The n-grams of `words` in order; none when there are fewer than n words."""
    return zip(*[words[k:] for k in range(n)], strict=False)


class Item(NamedTuple):
    """One benchmark problem."""

    benchmark: str
    id: str
    text: str


class Overlap(NamedTuple):
    """What a text shares with one item."""

    item: Item
    ngram: str
    """The first shared n-gram of the text; all words of an item shorter than n."""
    coverage: float
    """Share of the item's distinct n-grams that the text contains, in (0, 1]."""
    whole_item: bool
    """The item is shorter than n words and was found whole."""


class NgramIndex:
    """One index over all items of all benchmarks.

    An item shorter than `n` words has no n-gram; it matches where all its words stand in the
    text in one piece. An item without any word (symbols only, under `alnum`) can match nothing
    and is listed in `wordless`.
    """

    def __init__(self, items: Iterable[Item], n: int, normalise: Normalisation) -> None:
        self.n = n
        self.words = NORMALISATIONS[normalise]
        self.items = list(items)
        self.wordless: list[Item] = []
        self._grams: dict[Gram, list[int]] = {}
        self._gram_count: dict[int, int] = {}
        self._short: dict[int, list[str]] = {}
        for number, item in enumerate(self.items):
            self._add(number, item)
        self._known = self._grams.keys()
        self._block = (n + 1) // 2
        self._stride = n - self._block + 1
        self._blocks = frozenset(
            gram[start : start + self._block]
            for gram in self._grams
            for start in range(self._stride)
        )
        self._anchors = self._rarest_words()
        self._anchor_words = frozenset(self._anchors)

    @property
    def short_items(self) -> int:
        """How many items are matched whole."""
        return len(self._short)

    def overlaps(self, text: str) -> list[Overlap]:
        """All items that `text` shares an n-gram with, the best covered first."""
        words = self.words(text)
        found: list[Overlap] = []
        if self._has_known_block(words) and not self._known.isdisjoint(ngrams(words, self.n)):
            found += self._shared_ngrams(words)
        if not self._anchor_words.isdisjoint(words):
            found += self._whole_items(words)
        return sorted(found, key=lambda o: -o.coverage) if len(found) > 1 else found

    def _has_known_block(self, words: list[str]) -> bool:
        blocks = zip(*[words[k :: self._stride] for k in range(self._block)], strict=False)
        return not self._blocks.isdisjoint(blocks)

    def _add(self, number: int, item: Item) -> None:
        words = [sys.intern(word) for word in self.words(item.text)]
        if not words:
            self.wordless.append(item)
        elif len(words) < self.n:
            self._short[number] = words
        else:
            distinct = dict.fromkeys(ngrams(words, self.n))
            self._gram_count[number] = len(distinct)
            for gram in distinct:
                self._grams.setdefault(gram, []).append(number)

    def _rarest_words(self) -> dict[str, list[tuple[int, int]]]:
        """Rarest word of each short item → (item, place of the word in it): what to look for."""
        frequency = Counter(word for item in self.items for word in self.words(item.text))
        anchors: dict[str, list[tuple[int, int]]] = {}
        for number, words in self._short.items():
            rarest = min(words, key=lambda word: (frequency[word], -len(word)))
            anchors.setdefault(rarest, []).append((number, words.index(rarest)))
        return anchors

    def _shared_ngrams(self, words: list[str]) -> Iterator[Overlap]:
        shared: Counter[int] = Counter()
        first: dict[int, Gram] = {}
        for gram in dict.fromkeys(ngrams(words, self.n)):
            for number in self._grams.get(gram, ()):
                shared[number] += 1
                first.setdefault(number, gram)
        for number, count in sorted(shared.items()):
            coverage = count / self._gram_count[number]
            yield Overlap(self.items[number], " ".join(first[number]), coverage, False)

    def _whole_items(self, words: list[str]) -> Iterator[Overlap]:
        found: set[int] = set()
        for place, word in enumerate(words):
            for number, offset in self._anchors.get(word, ()):
                start, item = place - offset, self._short[number]
                if start >= 0 and words[start : start + len(item)] == item:
                    found.add(number)
        for number in sorted(found):
            yield Overlap(self.items[number], " ".join(self._short[number]), 1.0, True)
