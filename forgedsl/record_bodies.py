"""Bodies of `__init__` for records of up to 19 fields, so that no start of `forgec` compiles them.

These are texts of `records.body_text`. If that function changes, its new texts must be pasted here;
`compiler_tests/syntax/test_records.py` compares both. Each record gets a copy with its own names of
parameters; `_set_0` and `_end` are its globals.
"""

# ruff: noqa: F821
# mypy: ignore-errors


def _0(self):
    if _end:
        _end(self)


def _1(self, _0):
    _set_0(self, _0)
    if _end:
        _end(self)


def _2(self, _0, _1):
    _set_0(self, _0)
    _set_1(self, _1)
    if _end:
        _end(self)


def _3(self, _0, _1, _2):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    if _end:
        _end(self)


def _4(self, _0, _1, _2, _3):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    if _end:
        _end(self)


def _5(self, _0, _1, _2, _3, _4):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    if _end:
        _end(self)


def _6(self, _0, _1, _2, _3, _4, _5):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    if _end:
        _end(self)


def _7(self, _0, _1, _2, _3, _4, _5, _6):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    if _end:
        _end(self)


def _8(self, _0, _1, _2, _3, _4, _5, _6, _7):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    if _end:
        _end(self)


def _9(self, _0, _1, _2, _3, _4, _5, _6, _7, _8):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    if _end:
        _end(self)


def _10(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    if _end:
        _end(self)


def _11(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    if _end:
        _end(self)


def _12(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    if _end:
        _end(self)


def _13(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    if _end:
        _end(self)


def _14(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    if _end:
        _end(self)


def _15(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    _set_14(self, _14)
    if _end:
        _end(self)


def _16(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    _set_14(self, _14)
    _set_15(self, _15)
    if _end:
        _end(self)


def _17(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    _set_14(self, _14)
    _set_15(self, _15)
    _set_16(self, _16)
    if _end:
        _end(self)


def _18(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    _set_14(self, _14)
    _set_15(self, _15)
    _set_16(self, _16)
    _set_17(self, _17)
    if _end:
        _end(self)


def _19(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18):
    _set_0(self, _0)
    _set_1(self, _1)
    _set_2(self, _2)
    _set_3(self, _3)
    _set_4(self, _4)
    _set_5(self, _5)
    _set_6(self, _6)
    _set_7(self, _7)
    _set_8(self, _8)
    _set_9(self, _9)
    _set_10(self, _10)
    _set_11(self, _11)
    _set_12(self, _12)
    _set_13(self, _13)
    _set_14(self, _14)
    _set_15(self, _15)
    _set_16(self, _16)
    _set_17(self, _17)
    _set_18(self, _18)
    if _end:
        _end(self)


BODIES = tuple(
    made.__code__
    for made in (
        _0,
        _1,
        _2,
        _3,
        _4,
        _5,
        _6,
        _7,
        _8,
        _9,
        _10,
        _11,
        _12,
        _13,
        _14,
        _15,
        _16,
        _17,
        _18,
        _19,
    )
)
