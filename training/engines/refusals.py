"""What an endpoint says when it refuses a request, and which parameter it means. OpenAI, Azure and
Ark put `message` and `param` into `error`; vLLM's and SGLang's older servers leave `error` out;
FastAPI's 422 has `detail` with the path of the field; proxies send plain text."""

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

LONGEST = 300
_OBJECTS = re.compile(
    r"unsupported|not? (?:\w+ )?support|unrecogni[sz]ed|unknown|unexpected|invalid|extra|deprecated"
    r"|not (?:\w+ )?(?:permitted|allowed|valid|available|compatible)|too (?:large|long|high|big)"
    r"|must (?:be|not)|only .{0,20}(?:allowed|default)|at most|exceed|cannot|should be|out of range"
    r"|less than|range"
)
_CONTEXT = re.compile(r"context (?:length|window|size)\D{0,20}(\d+)")


class Refusal(NamedTuple):
    """Its words in one line, and the fields that it names apart from them."""

    words: str
    fields: tuple[str, ...] = ()

    def parameter(self, names: Collection[str]) -> str | None:
        """Which of the `names` that were sent it refuses; None: it is about something else."""
        for field in self.fields:
            if field in names:
                return field
        text = self.words.lower()
        if self.fields or not _OBJECTS.search(text):
            return None
        at = {n: m.start() for n in names if (m := re.search(rf"(?<!\w){n}(?!\w)", text))}
        return min(at, key=at.__getitem__) if at else None

    @property
    def context(self) -> int | None:
        text = _CONTEXT.search(self._plain())
        return int(text[1]) if text else None

    def limit_below(self, value: int) -> int | None:
        """The largest number in it that is smaller than `value`."""
        numbers = [int(n) for n in re.findall(r"(?<![\w.])\d{2,9}(?![\w.]*\w)", self._plain())]
        return max((n for n in numbers if n < value), default=None)

    def _plain(self) -> str:
        return re.sub(r"(?<=\d)[,_](?=\d{3})", "", self.words.lower())


def read_refusal(body: str | bytes) -> Refusal:
    """What the body of a refused request says, in any of the forms that servers use."""
    body = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        text = re.sub(r"<[^>]{0,200}>", " ", body)
        return Refusal(" ".join(text.split())[:LONGEST])
    words, fields = list[str](), list[str]()

    def read(value: Any) -> None:
        if isinstance(value, str):
            words.append(value)
        elif isinstance(value, list):
            for item in value[:4]:
                read(item)
        elif isinstance(value, dict):
            path = value.get("loc")
            if isinstance(path, list) and path:
                fields.append(str(path[-1]))
                words.append(f"{'.'.join(map(str, path))}: {value.get('msg', '')}")
                return
            if isinstance(value.get("param"), str):
                fields.append(value["param"].rpartition(".")[2])
            for name in ("error", "message", "detail", "details", "errors", "msg"):
                if value.get(name):
                    read(value[name])

    read(data)
    text = "; ".join(dict.fromkeys(words)) or json.dumps(data)
    return Refusal(" ".join(text.split())[:LONGEST], tuple(dict.fromkeys(fields)))
