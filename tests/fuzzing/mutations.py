"""Small damage to a valid input, as disks, cables and strangers do it: bits flip, bytes go or come, lengths say something else."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
"""What a length, a count or a position is replaced with."""

TOKENS = (
    b"\xc0", b"\xc2", b"\xc3", b"\x90", b"\x91", b"\x80", b"\xa0", b"\xa1\xff", b"\xc4\x00", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7,
    b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcb\x7f\xf8" + b"\0" * 6, b"\x91" * 2000,
    b"PS\x01", b"PC\x01", b"PSEG", b"PSK1", b"\0", b"-1", b"1e400", b"NaN", b"null", b"[]", b"{}", b"[" * 2000, b"9" * 5000,
    b'"\\ud800"', b"\xed\xa0\x80", b"%ed%a0%80", b"%2F", b"..", b"/", b"~x", b",", b";", b"=", b":", "¹".encode(), "٣".encode(),
)  # fmt: skip
"""Bytes that mean something in one of the formats: MessagePack, JSON, our magics, the texts."""


class Edit(Enum):
    FLIP = "one bit"
    CUT = "some bytes go"
    REPEAT = "some bytes come twice"
    TOKEN = "a token comes between"
    NUMBER = "a little- or big-endian number is replaced"
    BYTE = "one byte is replaced"
    END = "everything behind goes"


class Damage(NamedTuple):
    edit: Edit
    at: int
    """Where, modulo the length."""
    value: int
    """Which bit, how many bytes, which token or number."""


def damaged(data: bytes, damages: Sequence[Damage]) -> bytes:
    """`data` after all of them, one after another."""
    for damage in damages:
        data = _damaged(data, damage)
    return data


def _damaged(data: bytes, damage: Damage) -> bytes:
    at, value = damage.at % (len(data) + 1), damage.value
    before, behind = data[:at], data[at:]
    match damage.edit:
        case Edit.FLIP if behind:
            return before + bytes([behind[0] ^ (1 << value % 8)]) + behind[1:]
        case Edit.BYTE if behind:
            return before + bytes([value % 256]) + behind[1:]
        case Edit.CUT:
            return before + behind[1 + value % 16 :]
        case Edit.REPEAT:
            return before + behind[: 1 + value % 16] + behind
        case Edit.TOKEN:
            return before + TOKENS[value % len(TOKENS)] + behind
        case Edit.NUMBER:
            form = "<B", "<H", ">H", "<I", ">I", "<Q", ">Q"
            chosen = struct.Struct(form[value % len(form)])
            number = NUMBERS[value // len(form) % len(NUMBERS)] % (1 << 8 * chosen.size)
            return before + chosen.pack(number) + behind[chosen.size :]
        case Edit.END:
            return before
        case _:
            return data
