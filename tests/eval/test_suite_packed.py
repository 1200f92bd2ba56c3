"""LiveCodeBench's packed tests: one text is read, and no pickle is ever loaded."""

import base64
import contextlib
import json
import os
import pickle
import pickletools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.programs import formats as suite_packed
from eval.programs.formats import pickled_text, unpack_tests


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@given(st.text(), st.sampled_from(range(1, pickle.HIGHEST_PROTOCOL + 1)))
def test_the_text_of_every_protocol_is_read(text, protocol):
    assert pickled_text(pickle.dumps(text, protocol)) == text


def test_texts_of_every_length_are_read():
    for length in (0, 255, 256, 70_000):
        assert pickled_text(pickle.dumps("é" * length)) == "é" * length
        assert pickled_text(pickletools.optimize(pickle.dumps("é" * length))) == "é" * length


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


MEMO_BOMB = b"\x80\x04X\x01\x00\x00\x00ar\xff\xff\xff\x7f."  # memo index 2**31 - 1


@pytest.mark.parametrize(
    "data",
    [pickle.dumps(v) for v in (Evil(), ["a"], ("a", "b"), {"a": 1}, 7, None, b"bytes", os.mkdir)],
)
def test_anything_but_one_text_is_refused_unexecuted(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"only one text is accepted|ends early"):
        pickled_text(data)
    assert list(tmp_path.iterdir()) == []


def test_a_memo_index_claims_no_memory():
    assert pickled_text(MEMO_BOMB) == "a"


@given(st.binary(max_size=40))
def test_random_bytes_are_a_text_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        assert isinstance(pickled_text(data), str)


def test_what_is_packed_is_json():
    assert unpack_tests(packed(pickle.dumps('[{"input": "1"}]'))) == [{"input": "1"}]
    with pytest.raises(ValueError, match="packed tests cannot be read: Expecting value"):
        unpack_tests(packed(pickle.dumps("no json")))


def test_a_text_that_is_not_base64_is_something_else():
    assert unpack_tests("def check(candidate): ...") is None


@pytest.mark.parametrize("data", [b"", b"no zlib", zlib.compress(b"x" * 100)[:10]])
def test_damage_is_named(data):
    with pytest.raises(ValueError, match="packed tests cannot be read"):
        unpack_tests(base64.b64encode(data).decode())


def test_tests_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(suite_packed, "LARGEST_UNPACKED", 1 << 20)
    bomb = packed(pickle.dumps(json.dumps("x" * (2 << 20))))
    with pytest.raises(ValueError, match="over 1 MiB of tests"):
        unpack_tests(bomb)
