"""LiveCodeBench's private tests: base64 of a zlib-packed pickle that holds one text, which is JSON.

The pickle is not loaded but read: the opcodes of a single text, and nothing else. So no file can
name a class, call a function or claim memory that it does not fill.
"""

import base64
import binascii
import json
import zlib
from typing import Any

LARGEST_UNPACKED = 512 << 20
"""Bytes of text that a packed suite may hold."""

_PROTO, _FRAME, _MEMOIZE, _STOP = 0x80, 0x95, 0x94, 0x2E
_BINPUT, _LONG_BINPUT = 0x71, 0x72
_ARGUMENT_BYTES = {_PROTO: 1, _FRAME: 8, _MEMOIZE: 0, _BINPUT: 1, _LONG_BINPUT: 4}
_LENGTH_BYTES = {0x8C: 1, 0x58: 4, 0x8D: 8}  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8


def unpack_tests(text: str) -> Any:
    """The JSON value in `text`; None when `text` is not base64.

    Raises ValueError that says what is wrong with what is packed.
    """
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST_UNPACKED)
        if unpacker.unconsumed_tail:
            raise ValueError(f"over {LARGEST_UNPACKED >> 20} MiB of tests")
        return json.loads(pickled_text(data))
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"packed tests cannot be read: {error}") from error


def pickled_text(data: bytes) -> str:
    """The text in a pickle of one text. Raises ValueError for any other pickle."""
    text: str | None = None
    place = 0
    while place < len(data):
        opcode = data[place]
        place += 1
        if opcode == _STOP and text is not None:
            return text
        if opcode in _LENGTH_BYTES and text is None:
            size = _LENGTH_BYTES[opcode]
            length = int.from_bytes(data[place : place + size], "little")
            place += size
            if place + length > len(data):
                break
            text = data[place : place + length].decode("utf-8", "surrogatepass")
            place += length
        elif opcode in _ARGUMENT_BYTES:
            place += _ARGUMENT_BYTES[opcode]
        else:
            raise ValueError(f"the pickle holds opcode {opcode:#04x}; only one text is accepted")
    raise ValueError("the pickle ends early")
