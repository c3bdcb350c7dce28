"""The list of planted faults fits the tree; `make deep` plants them."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import planted

REMEDY = "plant another one there, or run: python compiler_tests/deep/planted.py --tidy"


def test_every_text_occurs_once() -> None:
    gone = [(fault.file, fault.was) for fault in planted.faults() if not fault.stands()]
    assert gone == [], REMEDY


def test_there_are_enough() -> None:
    assert len(planted.faults()) >= 200


def test_no_fault_is_planted_twice() -> None:
    twice = Counter(astuple(fault)[:3] for fault in planted.faults())
    assert [fault for fault, count in twice.items() if count > 1] == []


def test_a_change_changes_something() -> None:
    assert [fault for fault in planted.faults() if fault.was == fault.now] == []


def test_the_tests_that_find_them_exist() -> None:
    def exists(test: str) -> bool:
        file, _, name = test.partition("::")
        path = planted.ROOT / file
        return path.is_file() and f"def {name.split('[')[0]}(" in path.read_text(encoding="utf-8")

    assert [f.found_by for f in planted.faults() if not exists(f.found_by)] == []
