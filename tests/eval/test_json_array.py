"""A JSON array of any length is read one element at a time."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import row_files as json_array
from eval.row_files import array_values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


class OneByteAtATime(io.BytesIO):
    """The worst stream: every read ends in the middle of something."""

    def read(self, size=-1, /):
        return super().read(1)


def values(data: bytes, largest: int = 1 << 20) -> list:
    return list(array_values(io.BytesIO(data), largest))


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]))
def test_the_elements_are_those_of_the_json_parser_however_the_stream_is_cut(elements, indent):
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if b"\xed" in data:  # lone surrogates are no UTF-8
        return
    assert list(array_values(OneByteAtATime(data), 1 << 20)) == elements
    assert values(b"\xef\xbb\xbf  " + data + b" \n") == elements


def test_elements_longer_than_a_chunk_are_put_together(monkeypatch):
    monkeypatch.setattr(json_array, "CHUNK", 8)
    long = [{"a": "x" * 1000}, 12345678901234567890, "y" * 99]
    assert values(json.dumps(long).encode()) == long


def test_only_the_element_at_hand_is_held(monkeypatch):
    monkeypatch.setattr(json_array, "CHUNK", 64)
    stream = io.BytesIO(b"[" + b'"0123456789", ' * 10_000 + b"0]")
    first = next(array_values(stream, 1 << 20))
    assert first == "0123456789"
    assert stream.tell() <= 3 * 64


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "'\\[' expected, not 'the end'"),
        (b"[1, 2", "',\\]' expected, not 'the end'"),
        (b"[1 2]", "',\\]' expected, not '2'"),
        (b"[1, 2] 3", "'3' after the end of the array"),
        (b'[{"a": }]', "Expecting value"),
        (b'["\xff"]', "can't decode byte 0xff"),
        (b'["' + b"x" * 5000, "an element of over 1,000 characters"),
    ],
)
def test_what_is_no_array_is_refused_with_a_reason(data, reason):
    with pytest.raises(ValueError, match=reason):
        values(data, largest=1000)
