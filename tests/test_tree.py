"""funcgrad.tree: pytrees and functions on their leaves."""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import funcgrad as fg
from funcgrad import tree
from funcgrad.errors import ArgumentError, DtypeError, ShapeError, TreeError, UsageError

Point = namedtuple("Point", "x y")

PARAMS = {"w": 1.0, "b": [2.0, (3.0, None)], "p": Point(4.0, {"k": 5.0})}
LEAVES = [2.0, 3.0, 4.0, 5.0, 1.0]
PATHS = ["['b'][0]", "['b'][1][0]", "['p'].x", "['p'].y['k']", "['w']"]

trees = st.recursive(
    st.integers() | st.none() | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


# -- leaves and structure


@given(trees)
def test_flatten_and_unflatten_are_inverse(t: Any) -> None:
    leaves, treedef = tree.flatten(t)
    assert tree.unflatten(treedef, leaves) == t
    assert tree.leaves(t) == leaves
    assert tree.structure(t) == treedef
    assert hash(tree.structure(t)) == hash(treedef)
    assert tree.map(lambda x: x, t) == t


def test_leaves_come_in_order_of_sorted_keys() -> None:
    assert tree.leaves(PARAMS) == LEAVES
    assert tree.leaves({2: "b", 1: "a"}) == ["a", "b"]
    assert tree.leaves(OrderedDict([(2, "b"), (1, "a")])) == ["b", "a"]
    assert tree.leaves(deque([1, [2]])) == [1, 2]
    assert tree.leaves(defaultdict(list, b=1, a=2)) == [2, 1]


def test_none_is_an_empty_node() -> None:
    assert tree.leaves(None) == []
    assert tree.map(lambda x: 1 / 0, None) is None
    assert tree.leaves([None, 1], is_leaf=lambda x: x is None) == [None, 1]


def test_is_leaf_stops_above() -> None:
    assert tree.leaves([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]
    assert tree.map(len, [(1, 2), (3,)], is_leaf=lambda x: isinstance(x, tuple)) == [2, 1]


def test_unflatten_takes_any_objects() -> None:
    treedef = tree.structure({"a": 0, "b": [0, 0]})
    marker = object()
    assert tree.unflatten(treedef, [None, marker, "text"]) == {"a": None, "b": [marker, "text"]}
    with pytest.raises(TreeError, match=r"has 3 leaves, got 2"):
        tree.unflatten(treedef, [1, 2])


def test_keys_that_cannot_be_ordered() -> None:
    with pytest.raises(TreeError, match="orderable"):
        tree.flatten({"a": 1, 2: 2})


# -- functions on leaves


def test_map_over_several_trees() -> None:
    assert tree.map(operator.add, PARAMS, PARAMS) == tree.map(lambda x: 2 * x, PARAMS)
    assert tree.map(lambda x, sub: (x, sub), {"a": 1}, {"a": [2, {"c": 3}]}) == {"a": (1, [2, {"c": 3}])}


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"params": {"b": [0]}}, {"params": {"b": [{"c": 1}]}}, None),  # a leaf stands for any subtree
        ({"b": [(1, 2)]}, {"b": [3]}, r"map: different structures at tree 2\.b\[0\]: expected a tuple, got a leaf"),
        ({"b": [1]}, {"b": [1, 2]}, r"at tree 2\.b: expected a list with 1 children, got 2 children"),
        ({"b": 1}, {"c": 1}, r"at tree 2: expected a dict with keys 'b', got keys 'c'"),
        ({"b": {"x": 1}}, {"b": None}, r"at tree 2\.b: expected a dict, got None"),
        ({"b": None}, {"b": 1}, r"at tree 2\.b: expected None, got a leaf"),
        (Point(1, 2), (1, 2), r"at tree 2: expected a Point, got a tuple"),
    ],
)
def test_different_structures(a: Any, b: Any, message: str | None) -> None:
    if message is None:
        tree.map(lambda x, y: x, a, b)
        return
    with pytest.raises(TreeError, match=message):
        tree.map(lambda x, y: x, a, b)


def test_reduce_and_all() -> None:
    assert tree.reduce(operator.add, PARAMS) == 15.0
    assert tree.reduce(lambda n, x: n + 1, PARAMS, 0) == 5
    assert tree.reduce(operator.add, None, 7) == 7
    with pytest.raises(TreeError, match="no leaves"):
        tree.reduce(operator.add, [])
    assert tree.all({"a": True, "b": [1]})
    assert tree.all([])
    assert not tree.all([True, {"x": 0}])


def test_broadcast() -> None:
    full = {"w": [1, 2], "b": (3, {"c": 4})}
    assert tree.broadcast(0, full) == {"w": [0, 0], "b": (0, {"c": 0})}
    assert tree.broadcast({"w": "x", "b": ("y", "z")}, full) == {"w": ["x", "x"], "b": ("y", {"c": "z"})}
    with pytest.raises(TreeError, match=r"broadcast: different structures at tree 2\.b: expected a list"):
        tree.broadcast({"w": 0, "b": [1, 2]}, full)


def test_transpose() -> None:
    rows = [{"a": 1, "b": (2, 3)}, {"a": 4, "b": (5, 6)}]
    outer, inner = tree.structure([0, 0]), tree.structure(rows[0])
    turned = {"a": [1, 4], "b": ([2, 5], [3, 6])}
    assert tree.transpose(outer, inner, rows) == turned
    assert tree.transpose(outer, None, rows) == turned
    assert tree.transpose(inner, outer, turned) == rows
    with pytest.raises(TreeError, match=r"transpose: different structures at the inner tree\.b"):
        tree.transpose(outer, inner, [rows[0], {"a": 1, "b": 2}])


# -- paths


def test_paths() -> None:
    pairs, treedef = tree.flatten_with_path(PARAMS)
    assert [tree.keystr(path) for path, _ in pairs] == PATHS
    assert [leaf for _, leaf in pairs] == LEAVES
    assert treedef == tree.structure(PARAMS)
    assert tree.leaves_with_path(PARAMS) == pairs
    assert pairs[3][0] == (tree.DictKey("p"), tree.GetAttrKey("y"), tree.DictKey("k"))
    assert pairs[0][0] == (tree.DictKey("b"), tree.SequenceKey(0))
    for path, leaf in pairs:
        assert eval("PARAMS" + tree.keystr(path)) == leaf
    assert tree.keystr(pairs[3][0], simple=True, separator="/") == "p/y/k"
    assert tree.leaves_with_path(5) == [((), 5)]


def test_map_with_path() -> None:
    named = tree.map_with_path(lambda path, x, y: (tree.keystr(path), x + y), PARAMS, PARAMS)
    assert tree.leaves(named, is_leaf=lambda x: isinstance(x, tuple) and isinstance(x[0], str)) == [
        (path, 2 * leaf) for path, leaf in zip(PATHS, LEAVES, strict=True)
    ]


# -- new kinds of nodes


def test_register_pytree_node() -> None:
    class Pair:
        def __init__(self, x: Any, y: Any) -> None:
            self.x, self.y = x, y

    assert tree.register_pytree_node(Pair, lambda p: ([p.x, p.y], "aux"), lambda aux, xy: Pair(*xy)) is Pair
    doubled = tree.map(lambda v: 2 * v, Pair(1, [2]))
    assert (doubled.x, doubled.y) == (2, [4])
    assert [path for path, _ in tree.leaves_with_path(Pair(1, 2))] == [
        (tree.FlattenedIndexKey(0),),
        (tree.FlattenedIndexKey(1),),
    ]
    with pytest.raises(TreeError, match="registered as a pytree node already"):
        tree.register_pytree_node(Pair, lambda p: ((), None), lambda aux, xy: None)
    gradient = fg.grad(lambda p: p.x * p.y)(Pair(2.0, 3.0))
    assert (float(gradient.x), float(gradient.y)) == (3.0, 2.0)


def test_node_data_is_part_of_the_structure() -> None:
    @tree.register_pytree_node_class
    class Tagged:
        def __init__(self, x: Any, tag: str) -> None:
            self.x, self.tag = x, tag

        def tree_flatten(self) -> Any:
            return (self.x,), self.tag

        @classmethod
        def tree_unflatten(cls, tag: str, children: Any) -> Any:
            return cls(*children, tag)

    assert tree.map(lambda x: x + 1, Tagged(1, "t")).tag == "t"
    assert tree.structure(Tagged(1, "a")) != tree.structure(Tagged(1, "b"))
    with pytest.raises(TreeError, match="node data differ"):
        tree.map(lambda x, y: x, Tagged(1, "a"), Tagged(1, "b"))
    with pytest.raises(UsageError, match="no method tree_flatten"):
        tree.register_pytree_node_class(int)


def test_register_pytree_with_keys() -> None:
    class Model:
        def __init__(self, w: Any, b: Any) -> None:
            self.w, self.b = w, b

    tree.register_pytree_with_keys(
        Model,
        lambda m: (((tree.GetAttrKey("w"), m.w), ("b", m.b)), None),
        lambda aux, children: Model(*children),
    )
    assert [tree.keystr(path) for path, _ in tree.leaves_with_path([Model(1, (2,))])] == ["[0].w", "[0].b[0]"]
    with pytest.raises(TreeError, match="already"):
        tree.register_pytree_with_keys(Model, lambda m: ((), None), lambda aux, children: None)


def test_register_dataclass() -> None:
    @tree.register_dataclass
    @dataclass
    class Layer:
        w: Any
        size: int = field(default=3, metadata={"static": True})

    @functools.partial(tree.register_dataclass, data_fields=["w"], meta_fields=["name"])
    @dataclass(frozen=True)
    class Named:
        w: Any
        name: str

    assert tree.leaves(Layer(2.0, 5)) == [2.0]
    assert tree.map(lambda x: -x, Named(1.0, "n")) == Named(-1.0, "n")
    assert tree.keystr(tree.leaves_with_path(Named(1.0, "n"))[0][0]) == ".w"
    assert tree.structure(Layer(1.0, 1)) != tree.structure(Layer(1.0, 2))
    assert float(fg.grad(lambda layer: layer.w**layer.size)(Layer(2.0)).w) == 12.0
    with pytest.raises(UsageError, match="takes a dataclass"):
        tree.register_dataclass(int)


def test_register_static() -> None:
    @tree.register_static
    @dataclass(frozen=True)
    class Options:
        degree: int

    assert tree.leaves(Options(3)) == []
    f = fg.jit(lambda options, x: x**options.degree)
    assert float(f(Options(3), 2.0)) == 8.0
    assert float(f(Options(2), 2.0)) == 4.0


def test_partial_is_a_node() -> None:
    p = tree.Partial(lambda a, b, c: a * b * c, 2.0, c=3.0)
    assert p(1.0) == 6.0
    assert tree.leaves(p) == [2.0, 3.0]
    doubled = tree.map(lambda x: 2 * x, p)
    assert isinstance(doubled, tree.Partial)
    assert doubled(1.0) == 24.0
    assert float(fg.jit(lambda g, x: g(x))(p, 5.0)) == 30.0
    assert [float(x) for x in tree.leaves(fg.grad(lambda g: g(5.0))(p))] == [15.0, 10.0]


# -- one flat vector


def mixed() -> dict[str, Any]:
    return {
        "b": np.array([1.0, 2.0], np.float32),
        "n": np.array([[3], [4]], np.int16),
        "s": 5.0,
        "w": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 3)),
    }


def test_ravel_pytree_round_trip() -> None:
    t = mixed()
    flat, unravel = tree.ravel_pytree(t)
    assert isinstance(flat, fg.Array)
    assert flat.dtype == np.float64
    assert flat.tolist() == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    back = unravel(flat)
    assert tree.structure(back) == tree.structure(t)
    for got, want in zip(tree.leaves(back), tree.leaves(t), strict=True):
        assert got.dtype == np.asarray(want).dtype
        assert np.array_equal(got, want)
    flat[:] = 0
    assert t["w"][1, 2] == 5.0


def test_ravel_pytree_keeps_a_common_dtype() -> None:
    flat, unravel = tree.ravel_pytree([np.ones(2, np.float32), np.ones((), np.float32)])
    assert flat.dtype == np.float32
    assert unravel(np.ones(3))[0].dtype == np.float32
    empty, back = tree.ravel_pytree({"a": None})
    assert empty.shape == (0,)
    assert empty.dtype == np.float64
    assert back(empty) == {"a": None}


def test_unravel_refuses() -> None:
    _, unravel = tree.ravel_pytree({"w": np.ones((2, 2))})
    with pytest.raises(ShapeError, match=r"expected a vector of shape \(4,\), got shape \(3,\)"):
        unravel(np.ones(3))
    with pytest.raises(DtypeError, match="expected f64, got c128"):
        unravel(np.ones(4, complex))
    with pytest.raises(ArgumentError, match=r"tree\.w"):
        tree.ravel_pytree({"w": object()})


def test_ravel_pytree_under_transforms() -> None:
    params = {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([0.5, -0.5])}
    flat, unravel = tree.ravel_pytree(params)

    def loss(p: Any) -> Any:
        return np.sum(np.tanh(p["w"] @ p["b"])) + np.sum(p["b"] ** 3)

    gradient = fg.grad(loss)(params)
    through = fg.grad(lambda v: loss(unravel(v)))(flat)
    assert np.allclose(through, tree.ravel_pytree(gradient)[0], rtol=1e-15)
    assert np.allclose(fg.jit(lambda v: loss(unravel(v)))(flat), loss(params))
    assert fg.hessian(lambda v: loss(unravel(v)))(flat).shape == (6, 6)

    weights = np.arange(6.0)
    inside = fg.grad(lambda p: np.sum(weights * tree.ravel_pytree(p)[0]))(params)
    assert np.array_equal(tree.ravel_pytree(inside)[0], weights)
    rows = fg.vmap(lambda p: tree.ravel_pytree(p)[0])(tree.map(lambda x: np.stack([x, -x]), params))
    assert np.array_equal(rows, np.stack([flat, -flat]))


def test_gradient_of_mixed_precision_comes_back_in_the_dtype_of_each_leaf() -> None:
    t = {"a": np.ones(2, np.float32), "b": np.ones(2)}
    g = fg.grad(lambda p: np.sum(tree.ravel_pytree(p)[0] ** 2))(t)
    assert (g["a"].dtype, g["b"].dtype) == (np.float32, np.float64)
    assert g["a"].tolist() == [2.0, 2.0]


# -- names


def test_jax_names_are_aliases() -> None:
    assert fg.tree_util is fg.tree
    for name in ("map", "leaves", "flatten", "unflatten", "structure", "reduce", "all", "transpose",
                 "map_with_path", "flatten_with_path", "leaves_with_path"):  # fmt: skip
        assert getattr(fg.tree_util, f"tree_{name}") is getattr(tree, name)
    for name in tree.__all__:
        assert hasattr(tree, name)
