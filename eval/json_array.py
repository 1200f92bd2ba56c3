"""The elements of a JSON array of any length, one at a time."""

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

CHUNK = 1 << 20
_SPACE = " \t\r\n"


def array_values(stream: IO[bytes], largest: int) -> Iterator[Any]:
    """Stream the elements of the array in `stream`, which may begin with a byte order mark.

    Memory holds one element and as much text again. Raises ValueError where the text is no JSON
    array: text that is not UTF-8, an element longer than `largest` characters, or anything after
    the closing bracket.
    """
    text = _Text(stream, largest)
    text.expect("[")
    if text.next_is("]"):
        text.expect("]")
    else:
        while True:
            yield text.value()
            if text.next_is("]"):
                text.expect("]")
                break
            text.expect(",")
    text.expect_end()


class _Text:
    """Decoded text with a cursor; what lies behind the cursor is forgotten."""

    def __init__(self, stream: IO[bytes], largest: int) -> None:
        self._stream = stream
        self._largest = largest
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._place = 0
        self._ended = False

    def _read(self, size: int) -> bool:
        """Append up to `size` bytes of text; False at the end of the stream."""
        if self._ended:
            return False
        data = self._stream.read(size)
        self._ended = not data
        self._text = self._text[self._place :] + self._decoder.decode(data, final=self._ended)
        self._place = 0
        return not self._ended

    def _skip_space(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            while self._place < len(self._text):
                if self._text[self._place] not in _SPACE:
                    return self._text[self._place]
                self._place += 1
            if not self._read(CHUNK):
                return self._text[self._place : self._place + 1]

    def next_is(self, character: str) -> bool:
        return self._skip_space() == character

    def expect(self, character: str) -> None:
        found = self._skip_space()
        if found != character:
            raise ValueError(f"{character!r} expected, not {found or 'the end'!r}")
        self._place += 1

    def expect_end(self) -> None:
        if found := self._skip_space():
            raise ValueError(f"{found!r} after the end of the array")

    def value(self) -> Any:
        """One element. Reads twice as much whenever the text so far does not hold all of it."""
        self._skip_space()
        size = CHUNK
        while True:
            try:
                value, end = self._scan(self._text, self._place)
            except json.JSONDecodeError:
                if len(self._text) - self._place > self._largest:
                    raise ValueError(f"an element of over {self._largest:,} characters") from None
                if not self._read(size):
                    raise
                size *= 2
                continue
            if end == len(self._text) and self._read(size):
                continue  # a number may go on in the next chunk
            self._place = end
            return value
