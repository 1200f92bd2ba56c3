"""Is the model that answered the one that was asked? A gateway may route a request elsewhere.

Endpoints often answer under a longer or shorter name (`gpt-4o-2024-08-06` for `gpt-4o`), some
under an alias that shares nothing with it. A name that contains the asked one, or is contained in
it, counts at once; an alias counts when two replies carry it and none carried the asked name.
Once a name counts, every other is an answer of somebody else.
"""

from collections import Counter

from training.engines.endpoint_reply import BrokenReply


class ServedNames:
    """The names that replies came under, and which of them count."""

    def __init__(self, asked: str) -> None:
        self._asked = _plain(asked)
        self._counted = ""
        self._seen: Counter[str] = Counter()

    def check(self, name: str) -> None:
        """Raises BrokenReply when a reply under `name` must not be taken."""
        if not name or name == self._counted:
            return
        plain = _plain(name)
        if plain and (plain in self._asked or self._asked in plain):
            self._counted = self._counted if self._is_asked(self._counted) else name
            return
        self._seen[name] += 1
        if not self._counted and self._seen[name] > 1:
            self._counted = name
            return
        raise BrokenReply(f"answered by another model ({name[:60]})")

    def _is_asked(self, name: str) -> bool:
        plain = _plain(name)
        return bool(plain) and (plain in self._asked or self._asked in plain)


def _plain(name: str) -> str:
    return name.rpartition("/")[2].lower()
