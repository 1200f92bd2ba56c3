"""Which words a checkpoint's chat template puts around a question, as a hash that two can share."""

import hashlib
import json
from pathlib import Path

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

PROBE = [{"role": "user", "content": "What is 1 + 1?"}]
NO_TEMPLATE = "none"


class _PlainGeneration(Extension):
    """`{% generation %}` of training templates marks assistant tokens; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _template_text(checkpoint: Path) -> str | None:
    if (checkpoint / "chat_template.jinja").exists():
        return (checkpoint / "chat_template.jinja").read_text()
    config = checkpoint / "tokenizer_config.json"
    template = json.loads(config.read_text()).get("chat_template") if config.exists() else None
    if isinstance(template, list):  # several named templates
        template = next((t["template"] for t in template if t["name"] == "default"), None)
    return template


def template_hash(checkpoint: Path) -> str:
    """16 hex digits of the SHA-256 of the chat template applied to `PROBE`.

    Two checkpoints with equal hashes were asked in the same words, however their templates are
    written; "none" when the folder has no chat template. A template that cannot be rendered
    outside of its tokenizer is hashed as text.
    """
    template = _template_text(checkpoint)
    if template is None:
        return NO_TEMPLATE
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _PlainGeneration]
    )
    environment.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    try:
        text = environment.from_string(template).render(
            messages=PROBE,
            add_generation_prompt=True,
            tools=None,
            bos_token="<s>",
            eos_token="</s>",
        )
    except TemplateError:
        text = template
    return hashlib.sha256(text.encode()).hexdigest()[:16]
