"""From problems to tokens and back: the one place that knows the chat template. How a model is
asked, and what of its tokens is its answer, is read off what its template renders, for SFT, RL and
evaluation alike. What is judged is all of the answer: what the prompt already wrote of it, too."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import trl
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils.hub import cached_file

from ..eval.answers import THINK_CLOSE, THINK_OPEN, after_think
from ..eval.thinking import KNOWN
from .launch.result_files import CHAT_FILE, chat_file

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)  # as Qwen3
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"  # of ChatML
ANOTHER = "name another by base.chat_template"
_QUESTION, _ANSWER, _THOUGHT = "klear-question", "klear-answer", "klear-thought"
_OPEN_BLOCK = re.compile(rf"({THINK_OPEN}((?!{THINK_OPEN}).)*|{THINK_CLOSE}\s*)\Z", re.DOTALL)
_END_OF_PROMPT = re.compile(rf"({THINK_OPEN}\s*({THINK_CLOSE}\s*)?|{THINK_CLOSE}\s*)\Z")
_MARKUP = re.compile(r"<[^<>\s]{1,40}>")  # how templates write tokens: <|im_end|>, <end_of_turn>


def conversation(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


@dataclass(frozen=True, eq=False)
class ChatFormat:
    """How a model is asked and answers, for one tokenizer, its template and `kwargs` of that."""

    tokenizer: Tokenizer
    kwargs: Mapping[str, Any]
    prefill: str
    """What a prompt already wrote of the answer: "", `<think>`, or a whole empty block."""
    closing: tuple[int, ...]  # What the template writes after an answer; the last id ends the turn.
    stops: frozenset[int]  # Ids that end an answer.
    lead: str
    """What the template writes before an answer without thinking, and a model before its own."""
    marks: tuple[str, str] | None
    """What stands for <think> and </think> in this model's texts; None: these themselves."""

    @classmethod
    def from_template(
        cls, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None = None,
        stops: Iterable[int] = (),
    ) -> "ChatFormat":  # fmt: skip
        """The format that the template shows when it renders; `stops` are the end tokens of the
        model's generation config. Raises ValueError, with the fix, where answers could not be told
        from prompts, or not be seen to end."""
        kwargs = dict(kwargs or {})
        if not keeps_text(tokenizer):
            raise ValueError(
                f"the tokenizer of {_name(tokenizer)} does not give a text back from its tokens: "
                "spaces or lines are lost; its folder needs the tokenizer.json of the model, and "
                "tokenizer_config.json the right tokenizer_class"
            )
        prompt, bare = (_render(tokenizer, kwargs, generate=g) for g in (True, False))
        chat = _render(tokenizer, kwargs, {"content": _ANSWER})
        # What the prompt adds to the question's turn, which may end with a word about tags.
        tail = prompt[len(bare) :] if prompt.startswith(bare) else prompt.rpartition(_QUESTION)[2]
        opened = _OPEN_BLOCK.search(tail)
        prefill = _whole_block(opened[0]) if opened else ""
        header = prompt.removesuffix(opened[0]) if opened else prompt
        marks = None if prefill else _thinking_marks(tokenizer, kwargs, header)
        if marks and (opened := re.search(re.escape(marks[0]) + r"\s*\Z", tail)):
            prefill = opened[0].replace(marks[0], THINK_OPEN)
            header = prompt.removesuffix(opened[0])
        if _QUESTION not in bare or not chat.startswith(header) or _ANSWER not in chat:
            kept = "does not keep the prompt, or the answer, as it is when the answer follows"
            other = "what is trained would not be what is sampled"
            raise ValueError(f"the chat template of {_name(tokenizer)} {kept}: {other}; {ANOTHER}")
        lead = chat[len(header) : chat.index(_ANSWER)]
        closing = _closing(tokenizer, kwargs, chat.rpartition(_ANSWER)[2])
        ends: list[Any] = [closing[-1], tokenizer.eos_token_id, *stops]
        broken = set(closing) & set(_ids(tokenizer, marks[1])) if marks else ()
        if broken:
            mistake = "ends thinking with the token that ends a turn: an answer would stop there"
            raise ValueError(f"the chat template of {_name(tokenizer)} {mistake}; {ANOTHER}")
        end_ids = frozenset(i for i in ends if isinstance(i, int))
        closing = closing[: next(n for n, i in enumerate(closing, 1) if i in end_ids)]
        lead = lead if marks and THINK_OPEN not in lead else ""
        return cls(tokenizer, kwargs, prefill, closing, end_ids, lead, marks)

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt up to the point where the model goes on."""
        if not prompts:
            return []
        turns = [conversation(p) for p in prompts]
        return self.tokenizer.apply_chat_template(  # type: ignore[index]
            turns, add_generation_prompt=True, return_dict=True, **self.kwargs
        )["input_ids"]

    def response_ids(self, responses: Sequence[str]) -> list[list[int]]:
        """Token ids of each answer as the model writes it: without prefill, and closed."""
        texts = [self._in_own_marks(after_prefill(r, self.prefill)) for r in responses]
        encoded: Any = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        both = zip(texts, encoded, strict=True)
        ids = [i if self.stops.isdisjoint(i) else self._spelled(text) for text, i in both]
        return [[*answer, *self.closing] for answer in ids]

    def text(self, ids: Sequence[int]) -> str:
        """The answer as the judge sees it: prefill, think tags, no other special tokens."""
        return self.prefill + self.continuation(ids)

    def continuation(self, ids: Sequence[int]) -> str:
        """`text` without the prefill: what the model wrote itself."""
        end = next((n for n, i in enumerate(ids) if i in self.stops), len(ids))
        dropped = self._dropped
        kept = [i for i in ids[:end] if i not in dropped]
        text = self.tokenizer.decode(kept, skip_special_tokens=False)
        assert isinstance(text, str)
        if self.marks:
            opened, closed = self.marks
            text = text.removeprefix(self.lead) if self.lead else text
            text = text.replace(opened, THINK_OPEN).replace(closed, THINK_CLOSE)
        return text

    def _spelled(self, text: str) -> list[int]:
        """Token ids of an answer that mentions a token that ends answers: in letters, as it would
        else end there. Raises ValueError where the tokenizer has no other spelling."""
        added = self.tokenizer.added_tokens_decoder
        ends = [re.escape(added[i].content) for i in self.stops if i in added]
        pieces = re.split(f"({'|'.join(ends)})", text) if ends else [text]
        ids = [i for n, p in enumerate(pieces) for i in _ids(self.tokenizer, p, letters=n % 2 == 1)]
        if not self.stops.isdisjoint(ids):
            raise ValueError(f"this answer would end before its end: {text[:200]}")
        return ids

    def _in_own_marks(self, text: str) -> str:
        if not self.marks:
            return text
        if self.lead and not self.prefill and not text.lstrip().startswith(THINK_OPEN):
            text = self.lead + text
        return text.replace(THINK_OPEN, self.marks[0]).replace(THINK_CLOSE, self.marks[1])

    @cached_property
    def _dropped(self) -> set[int]:
        """Special tokens that are no part of a text."""
        special = {i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
        kept = [THINK_OPEN, THINK_CLOSE, *(self.marks or ()), self.lead]
        kept += [tag for tags in KNOWN for tag in tags]  # seen, they are named
        return special - {i for text in kept for i in _ids(self.tokenizer, text)}


def prefill_of(prompt: str) -> str:
    """What a prompt, given as text, already wrote of the answer: an open or empty think block."""
    opened = _END_OF_PROMPT.search(prompt)
    return _whole_block(opened[0]) if opened else ""


def _whole_block(written: str) -> str:
    """With the tag that a prompt leaves out which ends in </think> alone, as DeepSeek-V3.1's."""
    return f"{THINK_OPEN}{written}" if written.startswith(THINK_CLOSE) else written


def after_prefill(response: str, prefill: str) -> str:
    """What is left of an answer for a model whose prompt wrote `prefill` of it: together they have
    one think block. Where the prompt closes the block, thinking is left out; where it opens one
    and the answer has none, the answer closes it."""
    if not prefill or response.startswith(prefill):
        return response[len(prefill) :]
    if THINK_CLOSE in prefill:
        answer = after_think(response)
        return response if answer is None else answer.lstrip()
    body = response.lstrip()
    if body.startswith(THINK_OPEN):
        return body.removeprefix(THINK_OPEN).lstrip("\n")
    return response if THINK_CLOSE in response else f"\n{THINK_CLOSE}\n\n{response}"


def chat_format(
    model: str | Path, tokenizer: Tokenizer,
    kwargs: Mapping[str, Any] | None = None, stops: Iterable[int] = (), revision: str | None = None,
) -> ChatFormat:  # fmt: skip
    """The format of `model`, a folder or a hub id, asked with `kwargs` or, if None, its own."""
    own = read_chat_file(model, revision).get("chat_template_kwargs") if kwargs is None else kwargs
    return ChatFormat.from_template(tokenizer, own, stops)


def read_chat_file(model: str | Path, revision: str | None = None) -> dict[str, Any]:
    """`result_files.chat_file` of a folder or a hub id."""
    if not Path(model).is_dir():
        with suppress(OSError):  # it has no such file, or the hub is out of reach
            model = Path(cached_file(str(model), CHAT_FILE, revision=revision) or "").parent
    return chat_file(model)


def keeps_text(tokenizer: Tokenizer) -> bool:
    """Whether a text with spaces and lines comes back from its tokens as it was."""
    text = "so x = 6 * 7\n\n  is\n42"
    return tokenizer.decode(_ids(tokenizer, text)) == text


def give_template(tokenizer: Tokenizer, name: str | None) -> bool:
    """Set the template called `name`: `chatml`, one of TRL's, or a file; without a name ChatML
    where the tokenizer has none. True where tokens came with it that the vocabulary lacked, which
    only a name asks for. Raises ValueError with the fix."""
    if name is None and tokenizer.chat_template is not None:
        return False
    tokenizer.chat_template = CHATML if name in (None, "chatml") else _template_file(name)
    if tokenizer.bos_token is None and "bos_token" in str(tokenizer.chat_template):
        tokenizer.add_special_tokens({"bos_token": "<s>"})
    chat = _render(tokenizer, {}, {"content": _ANSWER})
    missing = [t for t in dict.fromkeys(_MARKUP.findall(chat)) if len(_ids(tokenizer, t)) != 1]
    missing = [t for t in missing if t not in (THINK_OPEN, THINK_CLOSE)]
    if missing and name is None:
        raise ValueError(
            f"{_name(tokenizer)} has no chat template, and its tokenizer lacks {missing}, so that "
            "ChatML would be plain text: set base.chat_template=chatml, which adds them, or name "
            "the template that it was trained with"
        )
    tokenizer.add_tokens(missing, special_tokens=True)
    return bool(missing)


def _template_file(name: str) -> str:
    shipped = Path(trl.__file__).with_name("chat_templates")
    for file in (Path(name).expanduser(), shipped / f"{name}.jinja"):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    names = ", ".join(["chatml", *sorted(f.stem for f in shipped.glob("*.jinja"))])
    raise ValueError(f"base.chat_template={name} is neither a file nor one of: {names}")


def _name(tokenizer: Tokenizer) -> str:
    return tokenizer.name_or_path or "this model"


def _ids(tokenizer: Tokenizer, text: str, letters: bool = False) -> list[int]:
    """Of a text by itself; with `letters`, of special tokens in it as of any other words."""
    options = {"add_special_tokens": False} | ({"split_special_tokens": True} if letters else {})
    return tokenizer(text, **options)["input_ids"] if text else []  # type: ignore[return-value]


def _render(
    tokenizer: Tokenizer, kwargs: Mapping[str, Any],
    *answers: Mapping[str, str], generate: bool = False,
) -> str:  # fmt: skip
    """A question, an answer, a question and so on, as text."""
    turns: list[dict[str, str]] = conversation(_QUESTION)
    for answer in answers:
        turns += [{"role": "assistant", **answer}, *conversation(_QUESTION)]
    turns = turns[: 1 + len(answers)] if len(answers) < 2 else turns[:-1]
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": generate, **kwargs}
    try:
        return str(tokenizer.apply_chat_template(turns, **options))
    except (TemplateError, TypeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        failed = f"does not render a question and an answer ({first})"
        message = f"the chat template of {_name(tokenizer)} {failed}: {ANOTHER}"
        raise ValueError(message) from error


def _closing(tokenizer: Tokenizer, kwargs: Mapping[str, Any], after: str) -> tuple[int, ...]:
    """The tokens with which the template closes an answer: the run of added tokens that begins what
    stands `after` it, or after an answer that another question follows, or else EOS."""
    added = tokenizer.added_tokens_decoder
    between = _render(tokenizer, kwargs, {"content": _ANSWER}, {"content": _ANSWER})
    between = between.partition(_ANSWER)[2].partition(_QUESTION)[0]
    for text in (after, between):
        run = list[int]()
        for token in _ids(tokenizer, text):
            if token not in added:
                break
            run.append(token)
        if run and text is after:
            return tuple(run)
        if run:  # the next turn's opening: its first token is enough
            return (run[0],)
    if not isinstance(tokenizer.eos_token_id, int):
        none = "writes no token after an answer, and the tokenizer has no EOS: nothing would end an"
        raise ValueError(f"the chat template of {_name(tokenizer)} {none} answer; {ANOTHER}")
    return (tokenizer.eos_token_id,)


def _thinking_marks(
    tokenizer: Tokenizer, kwargs: Mapping[str, Any], header: str
) -> tuple[str, str] | None:
    """What the template writes around the reasoning of an answer, where that is no think tag."""
    names: Collection[str] = ("reasoning_content", "reasoning", "thinking")
    chat = _render(tokenizer, kwargs, {"content": _ANSWER, **dict.fromkeys(names, _THOUGHT)})
    if not chat.startswith(header) or _THOUGHT not in chat[len(header) :]:
        return None
    opened, _, rest = chat[len(header) :].partition(_THOUGHT)
    closed = rest.partition(_ANSWER)[0]
    added, tags = tokenizer.added_tokens_decoder, (opened.strip("\n"), closed.strip("\n"))
    are_tokens = (any(i in added for i in _ids(tokenizer, tag)) for tag in tags)
    own = THINK_OPEN not in opened and all(are_tokens)
    return tags if own else None  # type: ignore[return-value]
