"""Records: values that never change."""

from __future__ import annotations

import pickle

import pytest
from builders import make_kernel, make_param, make_spec

from kreg.kernel import REQUIRED
from kreg.record import Record


class Point(Record):
    """Two numbers."""

    __slots__ = ("x", "y")

    def __init__(self, x: object, y: object) -> None:
        self._set(x=x, y=y)


class Place(Record):
    """The same two fields, in another class."""

    __slots__ = ("x", "y")

    def __init__(self, x: object, y: object) -> None:
        self._set(x=x, y=y)


def test_record_is_equal_by_class_and_fields():
    assert Point(1, 2) == Point(1, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Place(1, 2)
    assert Point(1, 2) != (1, 2)


def test_record_refuses_change():
    point = Point(1, 2)
    with pytest.raises(AttributeError, match=r"^Point is immutable; 'x' cannot be set$"):
        point.x = 3
    with pytest.raises(AttributeError, match=r"^Point is immutable; 'z' cannot be set$"):
        point.z = 3
    with pytest.raises(AttributeError, match=r"^Point is immutable; 'x' cannot be deleted$"):
        del point.x
    assert point == Point(1, 2)


def test_record_shows_its_fields():
    assert repr(Point(1, "b")) == "Point(x=1, y='b')"


@pytest.mark.parametrize("record", [Point(1, (2, 3)), make_spec(), make_kernel(), make_param()])
def test_record_is_equal_after_pickling(record: Record):
    assert pickle.loads(pickle.dumps(record)) == record


def test_required_is_one_object_after_pickling():
    assert pickle.loads(pickle.dumps(make_param())).default is REQUIRED
    assert repr(REQUIRED) == "REQUIRED"
