"""Native entries on tiny programs: right answers, the Python path for everything else, nothing leaked, no crash.

Run as a script, this file is the fuzzer: ``python tests/lowering/test_entry.py SEED CALLS``.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from funcgrad.base import tree
from funcgrad.core.array import Array
from funcgrad.lowering.donation import may_overwrite
from funcgrad.lowering.entry import MAX_TABLES, arm, make_entry, vectorcalled
from funcgrad.lowering.entry_layout import NativeCallable, available
from funcgrad.lowering.entry_table import Leaf, Native, Node, Registered, Spec, Static, Tree, prepare, tree_of
from funcgrad.lowering.machine import Library, compile_object, header, load
from funcgrad.lowering.pool import KEPT, LARGE, POOL, ArenaPool

REPO = Path(__file__).resolve().parents[2]
F64, I64, BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(bool)
DTYPES = [np.dtype(c) for c in "?bBhHiIlLefdFD"]
Point = collections.namedtuple("Point", "x y")

# -- programs

_COPY = """
define internal void @copy(ptr %args, i64 %from, i64 %to, i64 %n) {
start:
  %pa = getelementptr ptr, ptr %args, i64 %from
  %pb = getelementptr ptr, ptr %args, i64 %to
  %a = load ptr, ptr %pa
  %b = load ptr, ptr %pb
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %j, %body ]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %end, label %body
body:
  %p = getelementptr i8, ptr %a, i64 %i
  %q = getelementptr i8, ptr %b, i64 %i
  %v = load i8, ptr %p
  store i8 %v, ptr %q
  %j = add i64 %i, 1
  br label %next
end:
  ret void
}
"""


@functools.cache
def moves(*rows: tuple[int, int, int]) -> Library:
    """A program that copies bytes: each row is (from, to, how many), counted from the first leaf."""
    calls = "".join(f"  call void @copy(ptr %args, i64 {2 + a}, i64 {2 + b}, i64 {n})\n" for a, b, n in rows)
    return assembled(f"{_COPY}define i64 @program(ptr %args) {{\n{calls}  ret i64 0\n}}\n")


@functools.cache
def assembled(text: str) -> Library:
    return load([compile_object(header() + text, 0)], ["program"])


@functools.cache
def add_one(n: int) -> Library:
    """x + 1 for n doubles, leaf 0 to the first result."""
    return assembled(f"""
define i64 @program(ptr %args) {{
start:
  %pa = getelementptr ptr, ptr %args, i64 2
  %pb = getelementptr ptr, ptr %args, i64 3
  %a = load ptr, ptr %pa
  %b = load ptr, ptr %pb
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %j, %body ]
  %done = icmp eq i64 %i, {n}
  br i1 %done, label %end, label %body
body:
  %p = getelementptr double, ptr %a, i64 %i
  %q = getelementptr double, ptr %b, i64 %i
  %v = load double, ptr %p
  %w = fadd double %v, 1.0
  store double %w, ptr %q
  %j = add i64 %i, 1
  br label %next
end:
  ret i64 0
}}
""")


def size_of(leaf: Leaf) -> int:
    return int(np.prod(leaf.shape, dtype=int)) * leaf.dtype.itemsize


def leaves_of(node: Tree) -> list[Leaf]:
    if isinstance(node, Leaf):
        return [node]
    return [] if isinstance(node, Static) else [leaf for child in node.children for leaf in leaves_of(child)]


def input_leaves(spec: Spec) -> list[Leaf]:
    return [leaf for t in (*spec.args, *[t for _, t in spec.keywords]) for leaf in leaves_of(t)]


def native_moves(spec: Spec, sources: Sequence[int], **options: Any) -> Native:
    """The specialisation whose output k is a copy of leaf `sources[k]`."""
    inputs = input_leaves(spec)
    first = len(inputs) + len(spec.constants)
    sizes = [size_of(leaf) for leaf in inputs] + [c.nbytes for c in spec.constants]
    library = moves(*[(s, first + k, sizes[s]) for k, s in enumerate(sources)])
    native = prepare(spec, library["program"], owner=library, **options)
    assert native is not None
    return native


def missed(*args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "python", args, kwargs


def identity(*leaves: Tree, **options: Any) -> Callable[..., Any]:
    """An entry that returns a tuple of copies of its positional leaves."""
    spec = Spec(args=leaves, results=Node(tuple, tuple(strong(t) for t in leaves)))
    return make_entry([native_moves(spec, range(len(leaves)), **options)], missed)


def strong(node: Any) -> Leaf:
    return Leaf(node.dtype, node.shape)


def same(a: Any, b: Any) -> bool:
    return type(a) is Array and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


VECTOR = Leaf(F64, (3,))


def add_entry(**options: Any) -> Callable[..., Any]:
    library = add_one(3)
    native = prepare(Spec(args=(VECTOR,), results=VECTOR), library["program"], owner=library)
    assert native is not None
    return make_entry([native], missed, **options)


# -- the call


def test_native_entries_are_available_here() -> None:
    assert available()


def test_a_result_is_a_fresh_array() -> None:
    x = np.arange(3.0)
    y = add_entry()(x)
    assert type(y) is Array and y.tolist() == [1, 2, 3] and x.tolist() == [0, 1, 2]
    assert y.flags.owndata and y.flags.writeable and y.flags.c_contiguous and y.base is None
    y[:] = 0
    assert add_entry()(x.view(Array)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0, 3), (1,) * 32])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_comes_back(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    f = identity(Leaf(dtype, shape))
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    assert same(f(x)[0], x) and same(f(x.view(Array))[0], x)
    if shape == ():
        assert same(f(x[()])[0], x)
        assert f(x[()].item())[0] == ("python" if dtype != BOOL else x)


def test_python_scalars() -> None:
    f = identity(Leaf(F64, (), weak=True), Leaf(I64, (), weak=True), Leaf(np.dtype(complex), (), weak=True), Leaf(BOOL))
    for i in (0, 1, -1, 255, 2**31, -(2**63), 2**63 - 1):
        y = f(2.5, i, 1 - 2j, True)
        assert [v.item() for v in y] == [2.5, i, 1 - 2j, True] and all(type(v) is Array for v in y)
    for bad in [(2.5, 2**63, 1j, True), (2.5, -(2**63) - 1, 1j, True), (2.5, 10**40, 1j, True), (1, 1, 1j, True)]:
        assert f(*bad)[0] == "python"
    for bad in [(np.float64(1), 1, 1j, True), (1.0, True, 1j, True), (1.0, 1, 1.0, True), (1.0, 1, 1j, 1)]:
        assert f(*bad)[0] == "python"
    assert f(1.0, 2, 3j, np.True_)[3].item() is True
    assert f(float("nan"), 1, 1j, False)[0].tobytes() == np.float64("nan").tobytes()


class IntSubclass(int):
    pass


class FloatSubclass(float):
    pass


class ArraySubclass(np.ndarray):
    pass


def other_arrays() -> dict[str, Any]:
    """Objects that are like a float64 array of shape (3,), but not served natively."""
    x = np.arange(6.0)
    misaligned = np.frombuffer(bytearray(25), np.uint8)[1:].view(np.float64)
    return {
        "subclass": x[:3].view(ArraySubclass),
        "matrix": np.ma.masked_array(x[:3]),
        "strided": x[::2],
        "reversed": x[2::-1],
        "broadcast": np.broadcast_to(1.0, (3,)),
        "misaligned": misaligned,
        "swapped": x[:3].astype(">f8"),
        "metadata": x[:3].astype(np.dtype("f8", metadata={"a": 1})),
        "float32": x[:3].astype("f4"),
        "int": np.arange(3),
        "longdouble": x[:3].astype(np.longdouble),
        "object": x[:3].astype(object),
        "structured": np.zeros(3, "f8,f8"),
        "void": np.zeros(3, "V8"),
        "datetime": np.zeros(3, "M8[s]"),
        "string": np.array(["a", "b", "c"]),
        "variable string": np.array(["a", "b", "c"], np.dtypes.StringDType()),
        "longer": np.arange(4.0),
        "shorter": np.arange(2.0),
        "matrix3": np.ones((1, 3)),
        "scalar": np.float64(1),
        "0-d": np.array(1.0),
        "list": [1.0, 2.0, 3.0],
        "tuple": (1.0, 2.0, 3.0),
        "none": None,
        "float": 1.0,
        "str": "abc",
        "bytes": bytes(24),
        "type": np.ndarray,
        "memoryview": memoryview(x[:3]),
        "object()": object(),
        "module": np,
        "dtype": F64,
    }


@pytest.mark.parametrize("name", other_arrays())
def test_other_objects_take_the_python_path(name: str) -> None:
    x = other_arrays()[name]
    path, args, kwargs = add_entry()(x)
    assert path == "python" and args[0] is x and kwargs == {}


@pytest.mark.parametrize("writeable", [True, False])
def test_views_and_readonly_arrays_are_served(writeable: bool) -> None:
    x = np.arange(6.0).reshape(2, 3)
    view = x[1]
    view.flags.writeable = writeable
    assert add_entry()(view).tolist() == [4, 5, 6]
    frozen = np.frombuffer(np.arange(3.0).tobytes())
    assert add_entry()(frozen).tolist() == [1, 2, 3]


def test_the_dtype_of_the_same_number_is_served() -> None:
    copy = pickle.loads(pickle.dumps(np.dtype("f8", metadata={"a": 1}))).newbyteorder("=")
    for dtype in (np.dtype("<f8") if sys.byteorder == "little" else np.dtype(">f8"), copy):
        x = np.arange(3.0).astype(dtype)
        if dtype.metadata is None:
            assert add_entry()(x).tolist() == [1, 2, 3]


def test_the_number_of_arguments_and_keywords() -> None:
    f, x = add_entry(), np.arange(3.0)
    assert f()[1:] == ((), {})
    assert f(x, x)[0] == "python" and f(x, y=x)[0] == "python" and f(x=x)[0] == "python"
    assert f(**{})[0] == "python" and f(*[x], **{}).tolist() == [1, 2, 3]


# -- trees


def nested(kind: str) -> tuple[Any, Any]:
    """A tree of leaves and values of that structure."""
    a, b, c = np.arange(3.0), np.float64(4), np.arange(2)
    leaf_a, leaf_b, leaf_c = VECTOR, Leaf(F64), Leaf(I64, (2,))
    return {
        "dict": (Node(dict, (leaf_a, leaf_b), ("a", "b"), (0, 1)), {"a": a, "b": b}),
        "inserted otherwise": (Node(dict, (leaf_a, leaf_b), ("a", "b"), (1, 0)), {"b": b, "a": a}),
        "list": (Node(list, (leaf_a, leaf_c)), [a, c]),
        "tuple": (Node(tuple, (leaf_a, leaf_c)), (a, c)),
        "empty": (Node(tuple, (Node(list), Node(tuple), Node(dict), leaf_a)), ([], (), {}, a)),
        "namedtuple": (Node(Point, (leaf_a, leaf_b)), Point(a, b)),
        "none": (Node(tuple, (Node(type(None)), leaf_a)), (None, a)),
        "deep": (
            Node(
                dict,
                (
                    Node(list, (Node(Point, (leaf_a, leaf_b)), Node(tuple, (leaf_c,)))),
                    Node(dict, (leaf_b,), ("z",), (0,)),
                ),
                ("k", "w"),
                (1, 0),
            ),
            {"w": {"z": b}, "k": [Point(a, b), (c,)]},
        ),
    }[kind]


def check_tree(value: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray | np.generic):
        assert same(value, np.asarray(expected))
        return
    assert type(value) is type(expected)
    if isinstance(expected, dict):
        assert list(value) == list(expected)
        value, expected = list(value.values()), list(expected.values())
    if expected is not None:
        assert len(value) == len(expected)
        for v, e in zip(value, expected, strict=True):
            check_tree(v, e)


KINDS = ["dict", "inserted otherwise", "list", "tuple", "empty", "namedtuple", "none", "deep"]


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_walked_and_built(kind: str) -> None:
    structure, value = nested(kind)
    leaves, treedef = tree.flatten(value)
    assert tree_of(treedef, leaves_of(structure)) == structure
    spec = Spec(args=(structure,), results=structure)
    f = make_entry([native_moves(spec, range(len(leaves)))], missed)
    check_tree(f(value), value)
    if isinstance(value, dict):
        check_tree(f(dict(reversed(value.items()))), value)
        fresh = {"".join(list(k)): v for k, v in value.items()}  # equal keys that are other objects
        check_tree(f(fresh), value)
        assert f(collections.OrderedDict(value))[0] == "python"
        assert f(value | {"q": 1})[0] == "python"
        assert f(dict(list(value.items())[1:]))[0] == "python"
        assert f({**dict(list(value.items())[1:]), "q": 1})[0] == "python"
        assert f({**dict(list(value.items())[1:]), 3: 1})[0] == "python"
    elif isinstance(value, tuple):
        assert f(list(value))[0] == "python" and f(value + (1,))[0] == "python" and f(tuple(value[:-1]))[0] == "python"
    else:
        assert f(tuple(value))[0] == "python" and f([*value, 1])[0] == "python" and f(value[:-1])[0] == "python"


# -- registered nodes


@tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    b: Any = None
    name: str = dataclasses.field(default="layer", metadata={"static": True})


class Box:
    """A registered class whose function does what the tests ask for."""

    flattening: Callable[[Box], Any] = staticmethod(lambda box: ([box.content], box.label))

    def __init__(self, content: Any, label: Any = "box") -> None:
        self.content, self.label = content, label


tree.register_node(Box, lambda box: Box.flattening(box), lambda label, children: Box(*children, label))


def registered(value: Any) -> tuple[Tree, list[Any]]:
    """The tree of a value, and its leaves."""
    leaves, treedef = tree.flatten(value)
    return tree_of(treedef, [Leaf(np.asarray(x).dtype, np.shape(x)) for x in leaves]), leaves


def through(value: Any) -> Callable[..., Any]:
    """An entry that takes such a value and gives back copies of its leaves in the same structure."""
    structure, leaves = registered(value)
    return make_entry([native_moves(Spec(args=(structure,), results=structure), range(len(leaves)))], missed)


def registered_values() -> dict[str, Any]:
    x, y, s = np.arange(3.0), np.ones((2, 2)), np.float64(7)
    return {
        "dataclass": Layer(x, y),
        "without leaves": Layer(None, (), "n"),
        "class": Box(x),
        "nested": Layer(Box([x, Layer(y, s)]), {"k": Box((s,)), "q": x}),
        "in containers": {"a": [Layer(x), Layer(y)], "b": (Box(s), Point(x, Box(y))), "c": x},
        "ordered dict": collections.OrderedDict(z=x, a=Layer(y)),
        "default dict": collections.defaultdict(list, {"z": x, "a": y}),
        "deque": collections.deque([x, Box(y)], maxlen=4),
        "integer keys": {2: x, 1: Box(y)},
        "struct sequence": time.struct_time([np.float64(i) for i in range(9)]),
    }


@pytest.mark.parametrize("name", registered_values())
def test_registered_nodes_are_opened_and_closed(name: str) -> None:
    value = registered_values()[name]
    f = through(value)
    for given in (value, registered_values()[name]):
        result = f(given)
        leaves, treedef = tree.flatten(result)
        expected, structure = tree.flatten(value)
        assert treedef == structure and type(result) is type(value)
        assert all(same(v, np.asarray(e)) for v, e in zip(leaves, expected, strict=True))
    if type(value) is dict:
        assert list(result) == list(value)


def test_registered_nodes_that_differ_go_to_python() -> None:
    x = np.arange(3.0)
    f = through(Layer(x, Box(x)))
    for other in (
        Layer(x, Box(x), "other"),
        Layer(x, Box(x, "other")),
        Layer(x, Box(np.arange(4.0))),
        Layer(x, x),
        Layer([x], Box(x)),
        Box(x),
        (x, x),
        None,
    ):
        path, args, _ = f(other)
        assert path == "python" and args[0] is other
    assert through(collections.OrderedDict(a=x, b=x))(collections.OrderedDict(b=x, a=x))[0] == "python"
    assert through(collections.deque([x], 3))(collections.deque([x], 4))[0] == "python"


@pytest.mark.parametrize("keyword", [False, True])
def test_a_node_whose_function_raises(keyword: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(3.0)
    structure, _ = registered(Box(x))
    spec = Spec(args=(), keywords=(("p", structure),), results=VECTOR) if keyword else Spec((structure,), VECTOR)
    f = make_entry([native_moves(spec, [0])], missed)
    call = (lambda box: f(p=box)) if keyword else f
    assert same(call(Box(x)), x)
    monkeypatch.setattr(Box, "flattening", lambda box: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call(Box(x))
    for odd in ((), ([x, x], "box"), ([], "box"), ((x,), "box"), ("a", "box"), ([x], Raises())):
        monkeypatch.setattr(Box, "flattening", lambda box, odd=odd: odd)
        try:
            result = call(Box(x))
        except (TypeError, ValueError, RuntimeError):
            assert odd == () or isinstance(odd[1], Raises)
            continue
        assert same(result, x) if odd[0] == (x,) else result[0] == "python"


def test_a_node_whose_function_changes_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it frees or replaces is held meanwhile; arrays are looked at after the last function has run."""
    items: list[Any] = [np.arange(3.0), Box(np.ones(3)), Box(np.zeros(3)), np.arange(3.0)]
    f = through(items)
    shared: list[Any] = []

    def clears(box: Box) -> Any:
        shared.clear()
        gc.collect(0)  # a full one takes a second in a large process
        return [box.content], box.label

    monkeypatch.setattr(Box, "flattening", clears)
    for _ in range(200):
        shared[:] = [np.arange(3.0) + 1, Box(np.ones(3)), Box(np.zeros(3)), np.arange(3.0)]
        result = f(shared)
        assert [list(v) for v in (result[0], result[1].content, result[3])] == [[1, 2, 3], [1, 1, 1], [0, 1, 2]]

    def reshapes(box: Box) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            items[0].shape = (3, 1)
        return [box.content], box.label

    monkeypatch.setattr(Box, "flattening", reshapes)
    assert f(items)[0] == "python"


def test_a_class_that_looks_at_its_children() -> None:
    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            assert a.shape == b.shape == (3,)
            self.a, self.b = a, b

    tree.register_node(Pair, lambda p: ((p.a, p.b), None), lambda _, children: Pair(*children))
    x, y = np.arange(3.0), np.ones(3)
    f = through(Pair(x, y))
    for _ in range(3):
        result = f(Pair(x, y))
        assert type(result) is Pair and same(result.a, x) and same(result.b, y)


def test_a_result_whose_function_raises() -> None:
    def fails(children: list[Any]) -> Any:
        return 1 / 0

    node = Registered(Box, (VECTOR,), lambda box: [box.content], fails)
    f = make_entry([native_moves(Spec(args=(VECTOR, VECTOR), results=Node(list, (VECTOR, node))), [1, 0])], missed)
    with pytest.raises(ZeroDivisionError):
        f(np.arange(3.0), np.ones(3))


def test_keywords_in_any_order() -> None:
    spec = Spec(args=(VECTOR,), keywords=(("a", VECTOR), ("b", Leaf(F64))), results=Node(list, (VECTOR, Leaf(F64))))
    f = make_entry([native_moves(spec, [1, 2])], missed)
    x, a, b = np.zeros(3), np.arange(3.0), np.float64(7)
    for result in (
        f(x, a=a, b=b),
        f(x, b=b, a=a),
        f(*(x,), **{"b": b, "a": a}),
        f(x, **{"".join(["a", ""]): a, "b": b}),
    ):
        check_tree(result, [a, b])
    for kwargs in ({"a": a}, {"b": b}, {"a": a, "c": b}, {"a": a, "b": b, "c": 1}, {"b": a, "a": b}, {}):
        path, args, given = f(x, **kwargs)
        assert path == "python" and args == (x,) and given == kwargs

    class Name(str):
        __slots__ = ()

    assert f(x, **{Name("a"): a, "b": b})[0] == "python"
    with pytest.raises(TypeError, match="multiple values"):
        f(x, a=a, **{"a": a})


def test_static_arguments_are_compared_by_identity() -> None:
    mode = "".join(["mo", "de"])
    spec = Spec(args=(Static(mode), VECTOR), keywords=(("n", Static(3)),), results=VECTOR)
    f = make_entry([native_moves(spec, [0])], missed)
    x = np.arange(3.0)
    assert same(f(mode, x, n=3), x)
    assert f("mode", x, n=3)[0] == "python" and f(mode, x, n=4)[0] == "python" and f(mode, x, n=True)[0] == "python"


@pytest.mark.parametrize("first", [False, True])
def test_constants_are_passed(first: bool) -> None:
    constant = np.arange(5, dtype=np.float32)
    results = Node(tuple, (Leaf(constant.dtype, (5,)), VECTOR))
    spec = Spec(args=(VECTOR,), results=results, constants=(constant,), constants_first=first)
    library = moves((0, 2, 20), (1, 3, 24)) if first else moves((1, 2, 20), (0, 3, 24))
    native = prepare(spec, library["program"], owner=library)
    assert native is not None
    check_tree(make_entry([native], missed)(np.ones(3)), (constant, np.ones(3)))


# -- several specialisations


def test_specialisations_are_tried_in_turn() -> None:
    def native(n: int) -> Native:
        leaf = Leaf(F64, (n,))
        found = prepare(Spec(args=(leaf,), results=leaf), add_one(n)["program"], owner=add_one(n))
        assert found is not None
        return found

    natives = [native(n) for n in range(MAX_TABLES)]
    f = make_entry(natives, missed)
    for n in range(MAX_TABLES):
        assert f(np.zeros(n)).tolist() == [1] * n
    assert f(np.zeros(MAX_TABLES))[0] == "python"
    assert make_entry([], missed) is missed


def test_too_large_a_call_is_left_to_python() -> None:
    leaf = Leaf(F64)
    spec = Spec(args=(Node(list, (leaf,) * 5000),), results=leaf)
    assert prepare(spec, 1, owner=None) is None
    assert prepare(Spec(args=(Leaf(np.dtype(object)),), results=leaf), 1, owner=None) is None
    assert prepare(Spec(args=(leaf,), results=Leaf(np.dtype(np.longdouble))), 1, owner=None) is None
    many = Spec(args=(Node(list, (leaf,) * 1000),), results=leaf)
    assert same(make_entry([native_moves(many, [999])], missed)([np.float64(i) for i in range(1000)]), np.array(999.0))


# -- guards


def test_an_open_trace_goes_to_python() -> None:
    variable: ContextVar[Any] = ContextVar("variable", default=None)
    f, x = add_entry(context=variable), np.arange(3.0)
    assert f(x).tolist() == [1, 2, 3]
    token = variable.set("trace")
    assert f(x)[0] == "python"
    variable.reset(token)
    assert f(x).tolist() == [1, 2, 3]
    unset: ContextVar[Any] = ContextVar("unset")
    assert add_entry(context=unset)(x).tolist() == [1, 2, 3]


def test_a_switch_turns_entries_off() -> None:
    switch = bytearray(1)
    f, x = add_entry(switch=switch), np.arange(3.0)
    assert f(x).tolist() == [1, 2, 3]
    switch[0] = 1
    assert f(x)[0] == "python"
    with pytest.raises(BufferError):
        switch.append(1)


def test_native_calls_are_counted() -> None:
    hits = bytearray(8)
    f, x = add_entry(hits=hits), np.arange(3.0)
    for _ in range(300):
        f(x)
    f(x, x)
    assert int.from_bytes(hits, sys.byteorder) == 300
    with pytest.raises(ValueError, match="Buffer size"):
        add_entry(hits=bytearray(4))


# -- status


def stopping(code: int) -> Library:
    return assembled(f"""
define i64 @program(ptr %args) {{
  %p = getelementptr ptr, ptr %args, i64 1
  %status = load ptr, ptr %p
  %last = getelementptr i64, ptr %status, i64 7
  store i64 -5, ptr %last
  store i64 11, ptr %status
  ret i64 {code}
}}
""")


def test_a_status_becomes_an_exception() -> None:
    spec = Spec(args=(VECTOR,), results=Node(list, (VECTOR, VECTOR)), arena_size=64)
    library = stopping(3)
    got: list[tuple[int, ...]] = []

    def on_status(*numbers: int) -> None:
        got.append(numbers)
        raise IndexError("row 11")

    def entry(handler: Any) -> Callable[..., Any]:
        native = prepare(spec, library["program"], owner=library, on_status=handler)
        assert native is not None
        return make_entry([native], missed)

    x = np.zeros(3)
    for _ in range(100):
        with pytest.raises(IndexError, match="row 11"):
            entry(on_status)(x)
    assert got[0] == (3, 11, 0, 0, 0, 0, 0, 0, -5)
    with pytest.raises(SystemError, match="must raise"):
        entry(lambda *numbers: None)(x)
    native = prepare(spec, library["program"], owner=library)
    assert native is not None
    with pytest.raises(RuntimeError, match="status 3"):
        make_entry([native], missed)(x)


# -- arenas


@functools.cache
def arena_user() -> Library:
    """x + 1 for 3 doubles through the arena; stops with the arena's address if that is not a multiple of 64."""
    return assembled("""
define i64 @program(ptr %args) {
  %arena = load ptr, ptr %args
  %address = ptrtoint ptr %arena to i64
  %low = and i64 %address, 63
  %bad = icmp ne i64 %low, 0
  %px = getelementptr ptr, ptr %args, i64 2
  %x = load ptr, ptr %px
  %py = getelementptr ptr, ptr %args, i64 3
  %y = load ptr, ptr %py
  %v = load <3 x double>, ptr %x, align 8
  store <3 x double> %v, ptr %arena
  %w = load <3 x double>, ptr %arena
  %z = fadd <3 x double> %w, splat (double 1.0)
  store <3 x double> %z, ptr %y, align 8
  %code = zext i1 %bad to i64
  ret i64 %code
}
""")


def test_arenas_are_used_again() -> None:
    pool = ArenaPool(4096)
    library = arena_user()
    spec = Spec(args=(VECTOR,), results=VECTOR, arena_size=4096)
    native = prepare(spec, library["program"], owner=library, pool=pool)
    assert native is not None
    f = make_entry([native], missed)
    assert pool.free_blocks == 0
    for _ in range(10):
        assert f(np.arange(3.0)).tolist() == [1, 2, 3]
    assert pool.free_blocks == 1
    pool.clear()
    assert pool.free_blocks == 0 and f(np.arange(3.0)).tolist() == [1, 2, 3]
    too_large = prepare(spec, library["program"], owner=library, pool=ArenaPool(2**62))
    assert too_large is not None
    with pytest.raises(MemoryError):
        make_entry([too_large], missed)(np.arange(3.0))


def writing_at(offset: int) -> Library:
    """Writes one byte that far behind the start of its arena."""
    return assembled(f"""
define i64 @program(ptr %args) {{
  %arena = load ptr, ptr %args
  %p = getelementptr i8, ptr %arena, i64 {offset}
  store i8 1, ptr %p
  ret i64 0
}}
""")


@pytest.mark.parametrize("offset", [63, 64, 127])
def test_guard_words_stand_behind_arenas(offset: int) -> None:
    pool = ArenaPool(64)
    library = writing_at(offset)
    native = prepare(Spec(args=(VECTOR,), results=VECTOR, arena_size=64), library["program"], owner=library, pool=pool)
    assert native is not None
    f = make_entry([native], missed)
    if offset < 64:
        assert type(f(np.zeros(3))) is Array and pool.free_blocks == 1
        return
    for _ in range(3):
        with pytest.raises(RuntimeError, match="stopped with status -1"):
            f(np.zeros(3))
        assert pool.free_blocks == 0  # a damaged arena is not used again


def test_guard_words_are_for_checking_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUNCGRAD_CHECK", "0")
    monkeypatch.setattr("funcgrad.lowering.sanitize.ON", False)
    pool, library = ArenaPool(64), writing_at(64)
    arena = pool.take()
    assert arena % 64 == 0 and pool.give(arena) and pool.free_blocks == 1
    native = prepare(
        Spec(args=(), results=Node(type(None)), arena_size=64), library["program"], owner=library, pool=pool
    )
    assert native is not None and make_entry([native], missed)() is None


# -- donation


def donating(count: int = 2, **options: Any) -> Callable[..., Any]:
    """Adds 1 to its first vector in place; further arguments are only there."""
    library = add_in_place(count)
    spec = Spec(args=(VECTOR,) * count, results=VECTOR, donated=(0,), **options)
    native = prepare(spec, library["program"], owner=library)
    assert native is not None
    return make_entry([native], missed)


@functools.cache
def add_in_place(count: int) -> Library:
    return assembled(f"""
define i64 @program(ptr %args) {{
  %px = getelementptr ptr, ptr %args, i64 2
  %x = load ptr, ptr %px
  %py = getelementptr ptr, ptr %args, i64 {2 + count}
  %y = load ptr, ptr %py
  %v = load <3 x double>, ptr %x, align 8
  %w = fadd <3 x double> %v, splat (double 1.0)
  store <3 x double> %w, ptr %y, align 8
  ret i64 0
}}
""")


@pytest.mark.parametrize("release_gil", [False, True])
def test_a_donated_argument_is_the_result(release_gil: bool) -> None:
    f = donating(release_gil=release_gil)
    for x in (np.arange(3.0), np.arange(3.0).view(Array).copy()):
        before = sys.getrefcount(x)
        y = f(x, np.zeros(3))
        assert y is x and x.tolist() == [1, 2, 3]
        del y
        assert sys.getrefcount(x) == before


def test_what_may_not_be_donated_is_not_touched() -> None:
    f = donating()
    x = np.arange(6.0).reshape(2, 3)
    owner, whole, exported = np.arange(3.0), np.arange(3.0), np.arange(3.0)
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    kept = memoryview(exported)
    cases = [(x[0], x[1]), (owner, owner), (whole, whole.view()), (frozen, x[1]), (exported, x[1])]
    for a, b in cases:
        y = f(a, b)
        assert type(y) is Array and y.tolist() == [1, 2, 3] and a.tolist() == [0, 1, 2]
        assert not np.may_share_memory(y, a) and not np.may_share_memory(y, b)
    assert len(kept) == 3
    mine = np.arange(3.0)
    assert f(mine, mine.copy()) is mine


# -- large results


def test_large_results_use_memory_again() -> None:
    leaf = Leaf(np.dtype(np.uint8), (LARGE,))
    f = make_entry([native_moves(Spec(args=(leaf,), results=leaf), [0])], missed)
    x = np.ones(LARGE, np.uint8)
    POOL.clear()
    y = f(x)
    address = y.ctypes.data
    assert same(y, x) and y.flags.writeable and y.flags.c_contiguous and POOL.kept == 0
    part = np.asarray(y)[5:]
    del y
    assert POOL.kept == 0 and part[0] == 1
    z = f(x)
    assert z.ctypes.data != address
    del part
    assert POOL.kept == LARGE
    assert f(x).ctypes.data == address
    taken = z.base.base  # who takes out the buffer itself keeps it
    del z
    assert POOL.kept == LARGE and taken[0] == 1
    POOL.clear()
    assert POOL.kept == 0


def test_large_results_may_be_donated() -> None:
    leaf = Leaf(np.dtype(np.uint8), (LARGE,))
    f = make_entry([native_moves(Spec(args=(leaf,), results=leaf), [0])], missed)
    nothing = assembled("define i64 @program(ptr %args) {\n  ret i64 0\n}\n")
    native = prepare(Spec(args=(leaf,), results=leaf, donated=(0,)), nothing["program"], owner=nothing)
    assert native is not None
    step = make_entry([native], missed)
    y = f(np.ones(LARGE, np.uint8))
    assert step(y) is y
    part = y[:]
    other = step(part)
    assert other is not part and not np.may_share_memory(other, y)
    del y, part, other
    POOL.clear()


def test_the_pool_is_bounded() -> None:
    arrays = [POOL.empty((KEPT // 8 + k,), np.dtype(np.uint8)) for k in range(12)]
    arrays.clear()
    assert 0 < POOL.kept <= KEPT
    POOL.clear()


# -- the GIL and threads


@functools.cache
def slow_add(spins: int) -> Library:
    return assembled(f"""
define i64 @program(ptr %args) {{
start:
  %counter = alloca i64
  br label %spin
spin:
  %i = phi i64 [ 0, %start ], [ %j, %spin ]
  store volatile i64 %i, ptr %counter
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, {spins}
  br i1 %more, label %spin, label %work
work:
  %px = getelementptr ptr, ptr %args, i64 2
  %x = load ptr, ptr %px
  %py = getelementptr ptr, ptr %args, i64 3
  %y = load ptr, ptr %py
  %arena = load ptr, ptr %args
  %v = load <3 x double>, ptr %x, align 8
  store <3 x double> %v, ptr %arena
  %u = load <3 x double>, ptr %arena
  %w = fadd <3 x double> %u, splat (double 1.0)
  store <3 x double> %w, ptr %y, align 8
  ret i64 0
}}
""")


@pytest.mark.parametrize("release_gil", [False, True])
def test_the_gil_is_released_for_long_programs(release_gil: bool) -> None:
    library = slow_add(300_000_000)
    spec = Spec(args=(VECTOR,), results=VECTOR, arena_size=64, release_gil=release_gil)
    native = prepare(spec, library["program"], owner=library)
    assert native is not None
    f = make_entry([native], missed)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (f(np.zeros(3)), done.set()))
    ticks = 0
    thread.start()
    time.sleep(0.001)
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert (ticks > 10) == release_gil


@pytest.mark.parametrize("release_gil", [False, True])
def test_sixteen_threads_on_one_entry(release_gil: bool) -> None:
    library = slow_add(100)
    pool = ArenaPool(64)
    structure = Node(dict, (VECTOR,), ("x",), (0,))
    spec = Spec(args=(structure,), results=structure, arena_size=64, release_gil=release_gil)
    native = prepare(spec, library["program"], owner=library, pool=pool)
    assert native is not None
    f = make_entry([native], missed)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for k in range(500):
            x = np.array([seed, k, seed * k], float)
            y = f({"x": x})["x"]
            if not np.array_equal(y, x + 1):
                wrong.append((seed, k, y))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and 1 <= pool.free_blocks <= 16


# -- objects with attributes


@vectorcalled
class Face(NativeCallable):
    """What `jit` returns, in short."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class Slow(Face):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "slow", args, kwargs


def armed(target: Callable[..., Any]) -> Any:
    face = Slow("face")
    arm(face, target)
    face.__class__ = Face  # type: ignore[assignment]
    return face


def test_an_object_calls_its_entry() -> None:
    x = np.arange(3.0)
    face = Slow("face")
    assert face(x, y=1)[0] == "slow"
    arm(face, add_entry())
    assert face(x)[0] == "slow"
    face.__class__ = Face  # type: ignore[assignment]
    assert face(x).tolist() == [1, 2, 3] and face.__name__ == "face" and callable(face)
    assert face(x, y=1) == missed(x, y=1)
    assert face.__call__(x).tolist() == [1, 2, 3] and functools.partial(face, x)().tolist() == [1, 2, 3]
    assert next(map(face, [x])).tolist() == [1, 2, 3]
    arm(face, lambda *args: args)
    assert face(x, 1) == (x, 1)
    arm(face, len)
    assert face("abc") == 3
    assert weakref.ref(face)() is face
    face.__class__ = Slow
    assert face(x)[0] == "slow"


def test_an_object_is_a_method() -> None:
    spec = Spec(args=(Static(None), VECTOR), results=VECTOR)

    class Model:
        pass

    model = Model()
    spec = Spec(args=(Static(model), VECTOR), results=VECTOR)
    Model.step = armed(make_entry([native_moves(spec, [0])], missed))  # type: ignore[attr-defined]
    x = np.arange(3.0)
    assert same(model.step(x), x) and model.step(x, x)[0] == "python"  # type: ignore[attr-defined]
    assert Model().step(x)[0] == "python"  # type: ignore[attr-defined]


def test_an_object_without_entry_raises() -> None:
    with pytest.raises(TypeError, match="vectorcall"):
        Face("bare")()
    face = armed(len)
    del face._target
    with pytest.raises(TypeError, match="no native entry"):
        face("abc")


def test_a_subclass_of_an_object_calls_it_too() -> None:
    class Sub(Face):
        pass

    sub = Sub("sub")
    arm(sub, add_entry())
    assert sub(np.arange(3.0)).tolist() == [1, 2, 3]


def test_an_entry_may_be_replaced_while_it_runs() -> None:
    library = slow_add(30_000_000)
    face = armed(len)

    def fresh() -> Callable[..., Any]:
        spec = Spec(args=(VECTOR,), results=VECTOR, arena_size=64, release_gil=True)
        native = prepare(spec, library["program"], owner=library)
        assert native is not None
        return make_entry([native], missed)

    arm(face, fresh())
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(face(np.zeros(3)).tolist())) for _ in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        arm(face, fresh())
        gc.collect()
    assert results == [[1, 1, 1]] * 4


def test_a_cycle_through_the_fallback_is_collected() -> None:
    class Cyclic(Face):
        def python(self, *args: Any) -> str:
            return "python"

    cyclic = Cyclic("cyclic")
    library = add_one(3)
    native = prepare(Spec(args=(VECTOR,), results=VECTOR), library["program"], owner=library)
    assert native is not None
    arm(cyclic, make_entry([native], cyclic.python))
    assert cyclic(1) == "python"
    dead = weakref.ref(cyclic)
    del cyclic
    gc.collect()
    assert dead() is None


# -- the self-test


def test_another_layout_switches_native_entries_off() -> None:
    code = """
import warnings
import numpy as np
from funcgrad.lowering import entry_layout as entry
from funcgrad.lowering.entry_table import Leaf, Spec, prepare
offsets = {"ARRAY_DESCR": 48, "ARRAY_FLAGS": 60, "DESCR_METADATA": 64, "TUPLE_WORDS": 5, "VALUE": 24}
for name, wrong in offsets.items():
    right = entry.NUMBERS[name]
    entry.NUMBERS[name] = wrong
    entry.available.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        leaf = Leaf(np.dtype("f8"))
        for _ in range(3):
            assert prepare(Spec(args=(leaf,), results=leaf), 1, owner=None) is None
    assert len(seen) == 1 and "native entries are off" in str(seen[0].message), name
    entry.NUMBERS[name] = right
entry.available.cache_clear()
warnings.simplefilter("error")
assert entry.available()
"""
    run_python("-c", code)


def run_python(*arguments: str, timeout: float = 600) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPO), "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# -- references and memory


def leak_cases() -> dict[str, tuple[Callable[[], Any], list[Any]]]:
    """Calls of every kind, and the objects whose reference counts must stay."""
    a, b, i = np.arange(3.0), np.float64(2.5), 10**12
    tree_arg, value = nested("deep")
    into = Spec(args=(tree_arg,), results=tree_arg)
    deep = make_entry([native_moves(into, range(4))], missed)
    deep_free = make_entry([native_moves(Spec(args=(tree_arg,), results=tree_arg, release_gil=True), range(4))], missed)
    names = Spec(args=(), keywords=(("p", VECTOR), ("q", VECTOR)), results=Node(Point, (VECTOR, VECTOR)))
    named = make_entry([native_moves(names, [0, 1])], missed)
    scalars = identity(Leaf(F64, (), weak=True), Leaf(I64, (), weak=True), Leaf(F64), Leaf(BOOL))
    boxes: list[Any] = [Box(a), {"k": Layer(a, Box(b))}]
    opened = through(boxes)
    other = [boxes[0], {"k": Layer(a, Box(a))}]
    stop = stopping(2)
    failing = prepare(Spec(args=(tree_arg,), results=tree_arg), stop["program"], owner=stop)
    assert failing is not None
    broken = make_entry([failing], missed)

    def fails() -> None:
        try:
            broken(value)
        except RuntimeError:
            return
        raise AssertionError

    in_place, scratch = donating(), np.zeros(3)
    variable: ContextVar[Any] = ContextVar("variable", default=None)
    guarded = add_entry(context=variable, switch=bytearray(1))
    inner = value["k"][0].x
    watched = [
        a,
        b,
        i,
        F64,
        I64,
        BOOL,
        Array,
        np.ndarray,
        None,
        value,
        value["k"],
        value["w"],
        inner,
        Point,
        missed,
        True,
    ]
    return {
        "vector": (lambda: guarded(a), watched),
        "tree": (lambda: deep(value), watched),
        "tree without the GIL": (lambda: deep_free(value), watched),
        "keywords": (lambda: named(q=a, p=a), watched),
        "scalars": (lambda: scalars(2.5, i, b, True), watched),
        "missed": (lambda: guarded(b, a), watched),
        "missed tree": (lambda: deep({**value, "w": 1}), watched),
        "donated": (lambda: in_place(a, scratch), watched),
        "registered": (lambda: opened(boxes), [*watched, *boxes, boxes[1]["k"], Box, Layer, boxes]),
        "missed registered": (lambda: opened(other), [*watched, *boxes, *other, other[1]["k"], Box, Layer]),
        "failing": (fails, watched),
    }


def drift(call: Callable[[], Any], watched: Sequence[Any], calls: int) -> list[int]:
    call()
    gc.collect()
    before = [sys.getrefcount(x) for x in watched]
    for _ in itertools.repeat(None, calls):
        call()
    gc.collect()
    return [sys.getrefcount(x) - n for x, n in zip(watched, before, strict=True)]


LEAKS = ["vector", "tree", "tree without the GIL", "keywords", "scalars", "missed", "missed tree", "donated"]
LEAKS += ["registered", "missed registered", "failing"]


@pytest.mark.parametrize("name", LEAKS)
def test_no_reference_is_leaked(name: str) -> None:
    assert max(map(abs, drift(*leak_cases()[name], 2_000))) < 20


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_no_reference_is_leaked_in_a_million_calls(name: str) -> None:
    call, watched = leak_cases()[name]
    assert max(map(abs, drift(call, watched, 10_000))) < 20
    before = resident()
    assert max(map(abs, drift(call, watched, 1_000_000))) < 20
    assert resident() - before < 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def grows(cycles: int) -> int:
    """Bytes by which the process grows over compiled, called and dropped entries."""

    def cycle(k: int) -> None:
        text = f"define i64 @program(ptr %args) {{\n  ret i64 {k}\n}}\n"
        library = load([compile_object(header() + text, 0)], ["program"])
        spec = Spec(args=(VECTOR,), results=VECTOR, arena_size=1 << 16)
        native = prepare(spec, library["program"], owner=library)
        assert native is not None
        face = Slow("face")
        arm(face, make_entry([native], face.__call__))
        face.__class__ = Face  # type: ignore[assignment]
        try:
            face(np.zeros(3))
        except RuntimeError:
            return

    for k in range(1, 200):
        cycle(k)
    gc.collect()
    before = resident()
    for k in range(cycles):
        cycle(k)
    gc.collect()
    return resident() - before


def test_dropped_entries_leave_nothing() -> None:
    assert min(grows(600), grows(600)) < 1 << 20  # the allocator takes a MiB at a time; a leak shows in both


@pytest.mark.slow
def test_many_dropped_entries_leave_nothing() -> None:
    assert grows(10_000) < 2 << 20


# -- the fuzzer: odd objects, checked against a matcher in Python


def fits(node: Tree, x: Any) -> bool:
    """Whether `x` is what `node` describes; written for reading, not for speed."""
    if isinstance(node, Static):
        return x is node.value
    if isinstance(node, Registered):
        parts = parts_of(x)
        return type(x) is node.kind and len(parts) == len(node.children) and all(map(fits, node.children, parts))
    if isinstance(node, Node):
        if type(x) is not node.kind:
            return False
        if node.kind is type(None):
            return True
        if node.kind is dict:
            keys = dict.keys(x)
            if len(keys) != len(node.keys) or any(type(k) is not str for k in keys):
                return False
            return set(keys) == set(node.keys) and all(
                fits(c, dict.__getitem__(x, k)) for k, c in zip(node.keys, node.children, strict=True)
            )
        items = list(tuple.__iter__(x) if isinstance(x, tuple) else list.__iter__(x))
        return len(items) == len(node.children) and all(map(fits, node.children, items))
    if node.weak:
        kind = {"f": float, "i": int, "c": complex}[node.dtype.kind]
        return type(x) is kind and (kind is not int or -(2**63) <= x < 2**63)
    if type(x) in (np.ndarray, Array):
        d = x.dtype
        plain = d.num == node.dtype.num and d.isnative and d.metadata is None
        return plain and x.shape == node.shape and x.flags.c_contiguous and x.flags.aligned
    return node.shape == () and (type(x) is node.dtype.type or (type(x) is bool and node.dtype == BOOL))


def parts_of(x: Any) -> list[Any]:
    """The children of a registered node whose static fields are those of `fuzz_specs`; no children otherwise."""
    if type(x) is Layer and "w" in vars(x) and type(x.name) is str and x.name == "layer":
        return [x.w, x.b]
    return [x.content] if type(x) is Box and vars(x).get("label") == "box" else []


def flat(node: Tree, x: Any) -> list[Any]:
    """The leaves, as they were given."""
    if isinstance(node, Leaf):
        return [x]
    if isinstance(node, Static) or x is None:
        return []
    if isinstance(node, Registered):
        values = parts_of(x)
    else:
        values = [x[k] for k in node.keys] if node.kind is dict else list(x)
    return [leaf for child, v in zip(node.children, values, strict=True) for leaf in flat(child, v)]


class Raises:
    """An object on which almost everything raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("__eq__")

    def __hash__(self) -> int:
        raise RuntimeError("__hash__")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("__array__")

    def __len__(self) -> int:
        raise RuntimeError("__len__")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Collides:
    """A dict key with the hash of a string; comparing it empties a dict."""

    victim: dict[Any, Any] | None = None

    def __init__(self, like: str) -> None:
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if self.victim is not None:
            self.victim.clear()
        return isinstance(other, str) and other == self.like


class Text(str):
    __slots__ = ()


class DictSubclass(dict):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("__getitem__")


class ListSubclass(list):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("__iter__")

    def __len__(self) -> int:
        return 10**9


class TupleSubclass(tuple):
    def __len__(self) -> int:
        return 10**9


class PointSubclass(Point):
    pass


Other = collections.namedtuple("Other", "x y")


def fuzz_specs() -> list[tuple[Spec, list[int]]]:
    a, s, w = VECTOR, Leaf(F64), Leaf(F64, (), weak=True)
    i, c, flag, m = (
        Leaf(I64, (), weak=True),
        Leaf(np.dtype(complex), (), weak=True),
        Leaf(BOOL),
        Leaf(np.dtype("f4"), (2, 0)),
    )
    params = Node(dict, (a, Node(list, (a, s))), ("b", "w"), (1, 0))
    point = Node(Point, (a, Node(type(None))))
    mode = Static("mode")
    x, y = np.arange(3.0), np.float64(1)
    layer = registered(Layer(x, y))[0]
    layers = registered({"b": Box(Layer(x, [x, y])), "w": (Layer(y, None), x)})[0]
    return [
        (Spec(args=(layer, a), results=layer), [2, 1]),
        (Spec(args=(s,), keywords=(("k", layers),), results=Node(list, (layer, a)), release_gil=True), [1, 0, 5]),
        (Spec(args=(a, a, s), results=Node(tuple, (a, a)), donated=(0, -1)), [1, 1]),
        (Spec(args=(layer, params), results=a, donated=(2,)), [0]),
        (Spec(args=(a,), results=a), [0]),
        (Spec(args=(a, a), results=Node(tuple, (a, a))), [1, 0]),
        (Spec(args=(w, i), results=Node(list, (s, Leaf(I64)))), [0, 1]),
        (Spec(args=(c, flag), results=Node(Point, (Leaf(c.dtype), flag))), [0, 1]),
        (Spec(args=(params, a), results=params), [0, 1, 2]),
        (Spec(args=(point, m), results=point, release_gil=True), [0]),
        (
            Spec(args=(a,), keywords=(("k", params), ("mode", mode)), results=Node(dict, (a, s), ("q", "r"), (1, 0))),
            [1, 3],
        ),
        (Spec(args=(Node(tuple), Node(dict), Node(list, (s,) * 20)), results=s), [7]),
        (Spec(args=(), results=Node(type(None))), []),
    ]


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shared_list: list[Any] = [np.arange(3.0), np.float64(1)]
        self.shared_dict: dict[Any, Any] = {"w": self.shared_list, "b": np.arange(3.0)}
        self.stop = False
        self.cycle: list[Any] = [np.arange(3.0)]
        self.cycle.append(self.cycle)
        self.memmap_file = Path(os.environ.get("TMPDIR", "/tmp")) / f"funcgrad_fuzz_{os.getpid()}"
        self.memmap_file.write_bytes(bytes(24))
        self.memmap = np.memmap(self.memmap_file, np.float64, "r+")
        self.memmap_file.unlink()

    def mutate(self) -> None:
        """Another thread: shared containers change all the time."""
        r = random.Random(1)
        while not self.stop:
            shared, d = self.shared_list, self.shared_dict
            choice = r.randrange(6)
            if choice == 0:
                shared[:] = [np.arange(3.0), np.float64(1)]
            elif choice == 1:
                shared.append(np.arange(2.0))
            elif choice == 2:
                shared.clear()
            elif choice == 3:
                d["w"] = [np.arange(3.0), np.float64(2)] if r.random() < 0.5 else self.shared_list
            elif choice == 4:
                d["b"] = np.arange(3.0) if r.random() < 0.8 else None
            else:
                d.pop("b", None)
            time.sleep(0)

    def good(self, node: Tree) -> Any:
        """An object that fits, mostly."""
        r = self.random
        if isinstance(node, Static):
            return node.value
        if isinstance(node, Registered):
            return node.kind(*[self.object(c) for c in node.children])
        if isinstance(node, Node):
            children = [self.object(c) for c in node.children]
            if node.kind is dict:
                pairs = [("".join(k) if r.random() < 0.3 else k, v) for k, v in zip(node.keys, children, strict=True)]
                r.shuffle(pairs)
                return dict(pairs)
            if node.kind is type(None):
                return None
            return node.kind(*children) if node.kind is Point else node.kind(children)
        if node.weak:
            value = r.choice([0, 1, -1, 5, 2**63 - 1, -(2**63)])
            return {"f": float, "i": int, "c": complex}[node.dtype.kind](value)
        x = np.array(np.random.default_rng(r.randrange(1000)).normal(size=node.shape) * 10).astype(node.dtype)
        choice = r.randrange(6)
        if choice == 0:
            return x.view(Array)
        if choice == 1 and node.shape == ():
            return x[()] if node.dtype != BOOL or r.random() < 0.5 else bool(x)
        if choice == 2:
            x.flags.writeable = False
        if choice == 3 and node.shape:
            return np.stack([x, x])[1]
        return x

    def odd(self, node: Tree) -> Any:
        """Any object at all."""
        r = self.random
        x = np.arange(6.0)
        makers: list[Callable[[], Any]] = [
            lambda: r.choice(list(other_arrays().values())),
            lambda: r.choice([None, True, False, 0, 1.5, 2j, "", "mode", b"", (), [], {}, ..., NotImplemented]),
            lambda: r.choice([2**63, -(2**63) - 1, 10**100, IntSubclass(3), FloatSubclass(2.0), float("nan"), -0.0]),
            lambda: r.choice(
                [np.float32(1), np.int8(1), np.longdouble(1), np.str_("a"), np.void(b"12345678"), np.True_]
            ),
            lambda: r.choice([Raises(), Raises, object(), type, len, self, self.odd, (i for i in range(3)), iter([1])]),
            lambda: r.choice(
                [self.cycle, self.shared_list, self.shared_dict, self.memmap, self.memmap.view(np.ndarray)]
            ),
            lambda: r.choice([Point(x[:3], None), PointSubclass(x[:3], None), Other(x[:3], None), Point(1, 2), Point]),
            lambda: r.choice(
                [ListSubclass([x[:3], x[0]]), TupleSubclass((x[:3],)), DictSubclass(b=x[:3], w=[x[:3], x[0]])]
            ),
            lambda: collections.OrderedDict(w=[x[:3], x[0]], b=x[:3]),
            lambda: collections.defaultdict(list, {"w": [x[:3], x[0]], "b": x[:3]}),
            lambda: types.MappingProxyType({"w": [x[:3], x[0]], "b": x[:3]}),
            lambda: self.odd_dict(x),
            lambda: r.choice([Layer(x[:3], x[0], r.choice(["other", None, 1])), Box(x[:3], r.choice([None, "q"]))]),
            lambda: r.choice([Layer, Box, Box(self.cycle), Layer(Box(x[:3])), Layer(x[:3], Raises()), Box(Box)]),
            lambda: object.__new__(r.choice([Layer, Box])),
            lambda: Layer(x[:3], x[0], Raises()),  # type: ignore[arg-type]
            lambda: {float("nan"): 1, float("nan"): 2},
            lambda: np.lib.stride_tricks.as_strided(x, (3,), (0,)),
            lambda: x.reshape(2, 3)[::-1][0],
            lambda: np.zeros((0, 3)).T,
            lambda: np.empty((3, 0, 2)),
            lambda: np.ndarray((3,), ">f8", bytes(24)),
            lambda: np.ndarray((3,), "f8", bytearray(25), 1),
            lambda: np.full(3, None, dtype=object),
            lambda: np.rec.array([(1.0, 2)], dtype=[("x", "f8"), ("y", "i4")]),
            lambda: np.dtype("f8", metadata={"a": self}).type(3),
            lambda: np.zeros(3, np.dtype("f8", metadata={"a": self})),
            lambda: self.good(node),
        ]
        return r.choice(makers)()

    def odd_dict(self, x: np.ndarray) -> dict[Any, Any]:
        r = self.random
        w, b = [x[:3].copy(), x[0]], x[:3].copy()
        key: Any = r.choice([Text("w"), Collides("w"), Collides("b"), 1, None, ("w",), "v", b"w", 1.5, float("nan")])
        d = r.choice([{key: w, "b": b}, {"b": b, key: w}, {"w": w, key: b}, {key: w}, {"w": w, "b": b, key: 1}])
        if isinstance(key, Collides):
            key.victim = d
        return d

    def object(self, node: Tree) -> Any:
        return self.odd(node) if self.random.random() < 0.12 else self.good(node)

    def arguments(self, spec: Spec) -> tuple[list[Any], dict[str, Any]]:
        r = self.random
        args = [self.object(t) for t in spec.args]
        pairs = [(name, self.object(t)) for name, t in spec.keywords]
        r.shuffle(pairs)
        if r.random() < 0.05:
            args = r.choice([args[:-1], [*args, self.odd(VECTOR)], [self.odd(VECTOR)], list(reversed(args))])
        if r.random() < 0.05:
            pairs = r.choice([pairs[:-1], [*pairs, ("extra", 1)], [(n + "_", v) for n, v in pairs]])
        if r.random() < 0.05:
            pairs = [(Text(n), v) for n, v in pairs]
        return args, dict(pairs)

    def run(self, calls: int) -> tuple[int, int]:
        natives = [(spec, sources, native_moves(spec, sources)) for spec, sources in fuzz_specs()]
        entries = [(spec, sources, make_entry([n], missed)) for spec, sources, n in natives]
        together = make_entry([n for _, _, n in natives[:MAX_TABLES]], missed)
        face = armed(together)
        thread = threading.Thread(target=self.mutate)
        thread.start()
        hits = odd = 0
        try:
            for k in range(calls):
                spec, sources, entry = self.random.choice(entries)
                args, kwargs = self.arguments(spec)
                try:
                    hits += self.check(spec, sources, entry, args, kwargs)
                    (together, face)[k % 2](*args, **kwargs)
                except (RuntimeError, KeyError, IndexError, TypeError, AttributeError, ValueError):
                    odd += 1  # raised by the objects themselves, in the matcher in Python
        finally:
            self.stop = True
            thread.join()
        assert odd < 0.05 * calls, odd
        return calls, hits

    def check(self, spec: Spec, sources: Sequence[int], entry: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
        shared = self.mentions_shared([*args, *kwargs.values()])
        if not shared:
            names = [name for name, _ in spec.keywords]
            expected = len(args) == len(spec.args) and sorted(kwargs) == names
            expected = expected and all(type(n) is str for n in kwargs) and all(map(fits, spec.args, args))
            expected = expected and all(fits(t, kwargs[name]) for name, t in spec.keywords)
            trees = (
                [*zip(spec.args, args, strict=True), *[(t, kwargs[n]) for n, t in spec.keywords]] if expected else []
            )
            given = [leaf for t, x in trees for leaf in flat(t, x)]
            before = [np.array(x, leaf.dtype) for x, leaf in zip(given, input_leaves(spec), strict=False)]
            taken = [d >= 0 and expected and may_overwrite(given[d], given) for d in spec.donated]
        result = entry(*args, **kwargs)
        python = type(result) is tuple and len(result) == 3 and type(result[0]) is str
        if python:
            assert all(map(lambda p, q: p is q, result[1], args)) and len(result[1]) == len(args)
            assert list(result[2]) == list(kwargs)
        if shared:
            return not python
        assert expected != python, (expected, spec, args, kwargs)
        if not python:
            values = tree.flatten(result)[0]
            assert len(values) == len(sources)
            assert all(v.tobytes() == before[s].tobytes() for v, s in zip(values, sources, strict=True))
            for v, d, take in zip(values, spec.donated, taken, strict=False):
                assert (v is given[d]) == take
            assert all(type(v) is Array or any(v is x for x in given) for v in values)
            kept = [i for i in range(len(given)) if not any(given[i] is v for v in values)]
            assert all(np.array(given[i], before[i].dtype).tobytes() == before[i].tobytes() for i in kept)
        return not python

    def mentions_shared(self, values: Sequence[Any]) -> bool:
        """Whether a container that another thread changes is among them (one level deep)."""
        for v in values:
            if v is self.shared_list or v is self.shared_dict:
                return True
            inner = list(dict.values(v)) if isinstance(v, dict) else []
            inner += list(vars(v).values()) if type(v) in (Layer, Box) else []
            inner += (
                list(list.__iter__(v))
                if isinstance(v, list)
                else list(tuple.__iter__(v))
                if isinstance(v, tuple)
                else []
            )
            if any(i is self.shared_list or i is self.shared_dict for i in inner):
                return True
        return False


def fuzz(seed: int, calls: int) -> None:
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-4)
    done, hits = Fuzzer(seed).run(calls)
    assert 0.2 * done < hits < 0.95 * done, (done, hits)
    print(f"{done} calls, {hits} native")


def test_odd_objects_never_crash() -> None:
    run_python(str(Path(__file__)), "0", "20000")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_odd_objects_never_crash(seed: int) -> None:
    run_python(str(Path(__file__)), str(seed), "100000", timeout=3000)


if __name__ == "__main__":
    fuzz(int(sys.argv[1]), int(sys.argv[2]))
