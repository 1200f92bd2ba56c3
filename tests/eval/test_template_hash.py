"""eval.benchmarks.template_hash: equal for equal words around a question."""

import json
from pathlib import Path

from eval.benchmarks.benchmarks import NO_TEMPLATE, template_hash

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def folder(tmp_path: Path, name: str, template: str) -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / "chat_template.jinja").write_text(template)
    return tmp_path / name


def test_the_template_hash_sees_the_prompt_and_not_how_the_template_is_written(tmp_path):
    plain = folder(tmp_path, "plain", TEMPLATE)
    commented = folder(tmp_path, "commented", "{# a note #}" + TEMPLATE)
    training = folder(
        tmp_path,
        "training",
        TEMPLATE + "{% if false %}{% generation %}x{% endgeneration %}{% endif %}",
    )
    other = folder(tmp_path, "other", TEMPLATE.replace("<assistant>", "<assistant><think>"))
    assert template_hash(plain) == template_hash(commented) == template_hash(training)
    assert template_hash(plain) != template_hash(other)


def test_the_template_is_also_found_in_the_tokenizer_config(tmp_path):
    plain = folder(tmp_path, "plain", TEMPLATE)
    old, named, bare = tmp_path / "old", tmp_path / "named", tmp_path / "bare"
    for path in (old, named, bare):
        path.mkdir()
    (old / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    (named / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert template_hash(old) == template_hash(named) == template_hash(plain)
    assert template_hash(bare) == NO_TEMPLATE


def test_a_template_that_refuses_the_probe_is_hashed_as_text(tmp_path):
    a = folder(tmp_path, "a", "{{ raise_exception('tools only') }}")
    b = folder(tmp_path, "b", "{{ raise_exception('vision only') }}")
    assert template_hash(a) != template_hash(b)
