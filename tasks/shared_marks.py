"""What one machine knows of a shared store: which results it shared, and which were damaged there.

    <store>/.shared/<digits of the address>/<stage>/<key>            the manifest's SHA-256
    <store>/.shared/<digits of the address>/<stage>/<key>.damaged    empty

Each address has marks of its own: what was shared at one is not shared at another.
"""

import hashlib
from pathlib import Path

DIGITS = 16


class SharedMarks:
    """The marks below the local folder `root` about the object store at `url`."""

    def __init__(self, root: Path, url: str) -> None:
        self._folder = root / ".shared" / hashlib.sha256(url.encode()).hexdigest()[:DIGITS]

    def shared(self, stage: str, key: str) -> str:
        """The SHA-256 of the manifest that was shared or copied here last; '' for none."""
        mark = self._folder / stage / key
        return mark.read_text() if mark.exists() else ""

    def note_shared(self, stage: str, key: str, digest: str) -> None:
        """The manifest with that SHA-256 is in the object store, and its files were sound."""
        self._write(self._folder / stage / key, digest)
        self.note_sound(stage, key)

    def damaged(self, stage: str, key: str) -> bool:
        """Whether a file of the result was found damaged, and nobody has mended it from here."""
        return self._damaged(stage, key).exists()

    def note_damaged(self, stage: str, key: str) -> None:
        self._write(self._damaged(stage, key), "")

    def note_sound(self, stage: str, key: str) -> None:
        self._damaged(stage, key).unlink(missing_ok=True)

    def forget(self, stage: str, key: str) -> None:
        """The result was removed from the object store."""
        (self._folder / stage / key).unlink(missing_ok=True)
        self.note_sound(stage, key)

    def _damaged(self, stage: str, key: str) -> Path:
        return self._folder / stage / f"{key}.damaged"

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
