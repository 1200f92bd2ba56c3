"""The forms in which endpoints answer and refuse, as texts: no server is needed to read them."""

import json
from typing import Any

import pytest

from klear.configs.settings.engines import EngineSettings
from klear.eval.thinking import KNOWN, foreign_tags, with_think_tags
from klear.training.engines.refusals import read_refusal
from klear.training.engines.reply import BrokenReply, Reply

THOUGHT, SAID = "so it is 7\n\\boxed{7}", "The answer is \\boxed{7}."
PARTS = [{"type": "text", "text": SAID[:5]}, {"type": "text", "text": SAID[5:]}]
THINKING = [
    {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},  # Mistral
    {"type": "thinking", "thinking": THOUGHT, "signature": "x"},  # Anthropic, by gateways
    {"type": "reasoning", "text": THOUGHT},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHT}]},
]


def read(finish: str, **settings: Any) -> Any:
    def of(**message: Any) -> tuple[str, str]:
        choice = {"index": 0, "finish_reason": finish, "message": message}
        reply = Reply()
        reply.add(json.dumps({"model": "m", "choices": [choice]}))
        at = {"kind": "openai", "model": "m", "base_url": "http://h"}
        return reply.text(EngineSettings.model_validate({**at, **settings})), reply.finish()

    return of


MESSAGES = [
    *({"content": content, apart: THOUGHT} for content in (SAID, PARTS, None, "", [])
      for apart in ("reasoning_content", "reasoning", "thinking")),
    *({"content": [thinking, *more]} for thinking in THINKING for more in (PARTS, [])),
    {"content": SAID, "reasoning": THOUGHT, "reasoning_content": THOUGHT},
    {"content": SAID, "reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}]},
    *({"content": f"{again}</think>\n{SAID}", "reasoning": THOUGHT}
      for again in ("", f"<think>\n{THOUGHT}")),
]  # fmt: skip


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("message", MESSAGES)
def test_reasoning_apart_or_in_parts_is_thinking_whatever_content_is(message, finish):
    answer = SAID if "nswer is" in str(message) else ""
    end = finish if answer or finish == "length" else "empty"
    closed = f"\n</think>\n\n{answer}" if answer or finish == "stop" else ""
    assert read(finish)(**message) == (f"<think>\n{THOUGHT}{closed}", end)


@pytest.mark.parametrize("null", [{}, {"reasoning_content": None}, {"reasoning": ""}])
@pytest.mark.parametrize("content", [SAID, PARTS])
def test_without_reasoning_the_content_is_the_text(null, content):
    assert read("stop")(content=content, **null) == (SAID, "stop")


@pytest.mark.parametrize(("finish", "names"), [
    ("length", ["max_tokens", "MAX_TOKENS", "model_length", "FinishReason.MAX_TOKENS",
                "model_context_window_exceeded", "incomplete", "token_limit"]),
    ("refused", ["content_filter", "SAFETY", "RECITATION", "guardrail_intervened", "refusal"]),
    ("stop", ["STOP", "eos", "end_turn", "stop_sequence", "tool_calls", "COMPLETE"]),
    ("", ["network_error", "cancelled", "time_limit", "null", "OTHER"]),
])  # fmt: skip
def test_servers_call_the_end_of_an_answer_by_many_names_and_an_unknown_one_is_no_end(
    finish, names
):
    for name in names:
        if finish:
            assert read(name)(content="half") == ("half", finish)
        else:
            with pytest.raises(BrokenReply, match=r"gave up|does not say how it ended"):
                read(name)(content="half")


def test_a_stream_that_ends_with_the_whole_message_or_has_two_choices_is_read_once():
    reply, end = Reply(), {"finish_reason": "stop", "message": {"content": SAID}}
    for choice in ({"delta": {"content": SAID}}, {"index": 1, "delta": {"content": "no"}}, end):
        reply.add(json.dumps({"choices": [choice]}))
    reply.add('{"choices": null, "usage": {"prompt_tokens": 3}}')
    assert ("".join(reply.content), reply.finish(), reply.prompt_tokens) == (SAID, "stop", 3)


def test_content_of_another_type_or_an_error_anywhere_is_a_broken_reply():
    error = {"error": {"message": "engine died"}}
    half = {"finish_reason": "stop", "delta": {}}
    for body in (error, {"choices": [half | error]}, {"choices": [half]} | error,
                 {"detail": "engine died"}):  # fmt: skip
        with pytest.raises(BrokenReply, match="an error in the reply: engine died"):
            Reply().add(json.dumps(body))
    with pytest.raises(BrokenReply):
        read("stop")(content=7)


@pytest.mark.parametrize("pair", KNOWN)
def test_known_tags_are_named_where_they_stand_and_become_ours_by_the_setting(pair):
    cut = f"{pair[0]}Hm {THOUGHT}"
    complete = f"{cut}{pair[1]}{SAID}"
    assert foreign_tags(cut) == foreign_tags(complete) == pair
    for finish, text in (("stop", complete), ("length", cut)):
        parsed, _ = read(finish, think_tags=pair)(content=text)
        assert foreign_tags(parsed) is None
        thinking, closed, answer = parsed.partition("</think>")
        assert thinking.startswith("<think>")
        assert "\\boxed{7}" in thinking
        assert (bool(closed), answer.strip()) == ((True, SAID) if finish == "stop" else (False, ""))


def test_harmony_is_read_with_all_its_channels_and_tokens():
    raw = (
        "<|start|>assistant<|channel|>analysis<|message|>first<|end|><|start|>assistant"
        "<|channel|>analysis<|message|>second<|end|><|start|>assistant<|channel|>final<|message|>"
        "```python\nprint(1)\n```<|return|>"
    )
    pair = foreign_tags(raw)
    assert pair
    text = with_think_tags(raw, pair)
    assert text == "<think>\nfirstsecond\n</think>\n\n```python\nprint(1)\n```"


def test_texts_that_think_in_our_tags_or_only_mention_others_are_left_alone():
    for text in (
        "<think>\n<thinking>\n</think>7", "An analysis: assistants", "analysis of variance gives 7",
        "Wrap it in <thinking>…</thinking>.", "</reasoning>", "7", "",
    ):  # fmt: skip
        assert foreign_tags(text) is None
    for text in ("hm</seed:think>7", "hm<|end_of_thought|>7", "hm[/THINK]7"):
        assert foreign_tags(text), "the template wrote the beginning"


def body(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


FORBIDDEN = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not"}
SENT = ("max_tokens", "temperature", "top_p", "seed", "stream_options", "stream")


@pytest.mark.parametrize(
    ("text", "words", "parameter"),
    [
        (body("Unsupported value: 'temperature' does not support 0.6 with this model.",
              param="temperature", code="unsupported_value"), "Unsupported value", "temperature"),
        (body("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
              "'max_completion_tokens' instead.", param="max_tokens"), "instead", "max_tokens"),
        (json.dumps({"detail": [FORBIDDEN]}), "body.seed: Extra inputs are not", "seed"),
        (json.dumps({"object": "error", "message": {"detail": [FORBIDDEN]}}), "body.seed", "seed"),
        (json.dumps({"detail": "top_p is not allowed"}), "top_p is not allowed", "top_p"),
        (json.dumps({"object": "error", "message": "Unknown field: stream_options", "code": 400}),
         "Unknown field", "stream_options"),
        ("<html><body><h1>400</h1>seed: unknown parameter</body></html>", "400 seed: unknown",
         "seed"),
        (body("This model's maximum context length is 4096 tokens.", param="messages"),
         "4096", None),
        (body("Your prompt about the temperature of a seed was flagged"), "flagged", None),
        ('{"error": "no"}', "no", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal_and_the_parameter_it_means(text, words, parameter):
    refusal = read_refusal(text)
    assert words in refusal.words
    assert "\n" not in refusal.words
    assert refusal.parameter(SENT) == parameter


@pytest.mark.parametrize(
    ("words", "limit", "context"),
    [
        ("max_tokens is too large: 32768. This model supports at most 16384 completion tokens, "
         "whereas you provided 32768.", 16384, None),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192, None),
        ("max_tokens must be at most 16,384", 16384, None),
        ("'max_tokens' is too large: 32768. This model's maximum context length is 16384 tokens "
         "and your request has 120 input tokens", 16384, 16384),
    ],
)  # fmt: skip
def test_the_limit_that_a_refusal_names(words, limit, context):
    refusal = read_refusal(body(words))
    assert (refusal.limit_below(32768), refusal.context) == (limit, context)
