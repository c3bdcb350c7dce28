"""forgedsl.records.dataclass does what dataclasses.dataclass does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from forgedsl import record_bodies, records

OPTIONS = {"frozen": True, "slots": True, "kw_only": True}


@records.dataclass(**OPTIONS)
class Base:
    span: int


@records.dataclass(**OPTIONS)
class Child(Base):
    name: str
    items: list[int] = records.field(default_factory=list)
    label: str | None = None

    @property
    def size(self) -> int:
        return len(self.items)


@dataclasses.dataclass(**OPTIONS)
class StdBase:
    span: int


@dataclasses.dataclass(**OPTIONS)
class StdChild(StdBase):
    name: str
    items: list[int] = field(default_factory=list)
    label: str | None = None


@records.dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 2.0


@records.dataclass(slots=True)
class Mutable:
    values: list[int] = records.field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        self.total = sum(self.values)


@records.dataclass(frozen=True, slots=True, eq=False)
class Identity:
    x: int


@records.dataclass(frozen=True, slots=True)
class Empty:
    pass


def test_construction_and_defaults():
    child = Child(span=1, name="a")
    assert (child.span, child.name, child.items, child.label, child.size) == (1, "a", [], None, 0)


def test_defaults_made_by_a_factory_are_not_shared():
    assert Child(span=1, name="a").items is not Child(span=1, name="a").items


@pytest.mark.parametrize("arguments", [{}, {"span": 1}, {"span": 1, "name": "a", "other": 2}])
def test_wrong_arguments(arguments):
    with pytest.raises(TypeError, match="argument"):
        Child(**arguments)


def test_keyword_only():
    with pytest.raises(TypeError):
        Child(1, "a")
    assert Point(1.0) == Point(1.0, 2.0)


@pytest.mark.parametrize("name", ["span", "name"])
def test_frozen(name):
    child = Child(span=1, name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(child, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(child, name)


def test_slots():
    child = Child(span=1, name="a")
    assert not hasattr(child, "__dict__")
    assert (Base.__slots__, Child.__slots__) == (("span",), ("name", "items", "label"))


def test_equality_is_of_values_and_class():
    assert Point(1, 2) == Point(1, 2) != Point(1, 3)
    assert Base(span=1) != Point(1)
    assert Identity(1) != Identity(1)


def test_hash():
    assert len({Point(1, 2), Point(1, 2), Point(1, 3), Empty(), Empty()}) == 3
    with pytest.raises(TypeError):
        hash(Mutable())


def test_repr_is_that_of_the_standard_library():
    ours, theirs = Child(span=1, name="a"), StdChild(span=1, name="a")
    assert repr(ours) == repr(theirs).replace("Std", "")


def test_fields_are_those_of_the_standard_library():
    ours, theirs = (
        [(f.name, f.type, f.default, f.default_factory, f.kw_only) for f in dataclasses.fields(c)]
        for c in (Child, StdChild)
    )
    assert ours == theirs
    assert [f.name for f in records.fields(Child)] == [f.name for f in records.fields(StdChild)]
    assert dataclasses.is_dataclass(Child)
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 2.0}


def test_replace():
    assert records.replace(Child(span=1, name="a"), span=3) == Child(span=3, name="a")
    assert records.replace(StdChild(span=1, name="a"), span=3) == StdChild(span=3, name="a")
    with pytest.raises(TypeError):
        records.replace(Point(1), z=3)
    assert dataclasses.replace(Child(span=1, name="a"), span=3) == Child(span=3, name="a")


def test_match():
    match Point(3, 4):
        case Point(3, y):
            assert y == 4
    match Child(span=1, name="a"):
        case Child(name=name):
            assert name == "a"


@pytest.mark.parametrize("record", [Child(span=1, name="a", items=[2]), Point(1), Mutable([1])])
def test_pickle_and_copy(record):
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.copy(record) == record == copy.deepcopy(record)


def test_post_init_and_assignment():
    record = Mutable([1, 2])
    record.values = [5]
    assert (record.total, record.values) == (3, [5])


def test_a_method_of_the_class_wins():
    @records.dataclass(frozen=True, slots=True)
    class Odd:
        x: int

        def __repr__(self) -> str:
            return "odd"

        def __eq__(self, other: object) -> bool:
            return True

    assert repr(Odd(1)) == "odd"
    assert Odd(1) == Odd(2)
    assert isinstance(hash(Odd(1)), int)


def test_what_is_not_supported_goes_to_the_standard_library():
    @records.dataclass(frozen=True, slots=True)
    class Special:
        x: int
        y: int = records.field(init=False, compare=False, default=0)

    assert not hasattr(Special, "_record")
    assert Special(1).y == 0


def test_a_mutable_default_is_refused():
    with pytest.raises(ValueError, match="mutable default"):

        @records.dataclass(frozen=True, slots=True)
        class Bad:
            x: list[int] = []  # noqa: RUF012


@pytest.mark.parametrize("size", range(len(record_bodies.BODIES)))
def test_a_compiled_body_is_that_of_its_text(size: int) -> None:
    names: dict[str, Any] = {}
    exec(records.body_text(size), names)
    made, written = names[f"_{size}"].__code__, record_bodies.BODIES[size]
    assert (written.co_code, written.co_names, written.co_varnames) == (
        made.co_code,
        made.co_names,
        made.co_varnames,
    )


def test_more_fields_than_compiled_bodies() -> None:
    names = [f"field_{i}" for i in range(len(record_bodies.BODIES) + 3)]
    body = {"__annotations__": dict.fromkeys(names, "int")}
    made = records.dataclass(frozen=True, slots=True)(type("Large", (), body))
    assert [getattr(made(*range(len(names))), name) for name in names] == [*range(len(names))]
