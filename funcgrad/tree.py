"""Pytrees: nested containers of arrays, and functions on all their leaves at once.

dict, list, tuple, namedtuple, OrderedDict, defaultdict, deque and registered classes are nodes; ``None`` is an empty
node; everything else is a leaf. Every transform of funcgrad takes and returns pytrees.

    >>> import funcgrad as fg
    >>> params = {"w": 2.0, "b": (1.0, None)}
    >>> fg.tree.leaves(params)
    [1.0, 2.0]
    >>> fg.tree.map(lambda x: 10 * x, params)
    {'w': 20.0, 'b': (10.0, None)}

JAX's names of the same functions (`tree_map`, `tree_flatten` …) are aliases; `funcgrad.tree_util` is this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
import optree

from funcgrad import numpy as fnp
from funcgrad.base import tree as base
from funcgrad.base.dtypes import FLOAT, Dtype, short
from funcgrad.base.errors import DtypeError, ShapeError, TreeError, UsageError, printed
from funcgrad.numpy.operands import array

C = TypeVar("C", bound=type)
PyTreeDef = base.Treedef
IsLeaf = Callable[[Any], bool] | None

# -- leaves and structure


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree in order, and the structure to put them back.

    Parameters
    ----------
    tree
        Any pytree. Dict keys are sorted.
    is_leaf
        Called on every node; where it returns True, the node is taken as a leaf.

    Returns
    -------
    leaves : list
    treedef : PyTreeDef
        Hashable, and compared by ``==``.

    Raises
    ------
    TreeError
        Dict keys that cannot be ordered.

    Examples
    --------
    >>> leaves, treedef = flatten({"b": [1, 2], "a": 3})
    >>> leaves, treedef.num_leaves
    ([3, 1, 2], 3)
    >>> unflatten(treedef, "xyz")
    {'b': ['y', 'z'], 'a': 'x'}
    """
    return base.flatten(tree, is_leaf)


def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure `treedef` with the given leaves, which may be any objects."""
    _require_structure("unflatten", treedef)
    if not isinstance(leaves, Iterable):
        raise UsageError(f"unflatten: leaves are in a list, got {printed(leaves)}")
    leaves = list(leaves)
    if len(leaves) != treedef.num_leaves:
        raise TreeError(f"unflatten: the structure has {treedef.num_leaves} leaves, got {len(leaves)}")
    return base.unflatten(treedef, leaves)


def _require_structure(name: str, treedef: Any) -> None:
    if not isinstance(treedef, PyTreeDef):
        raise UsageError(f"{name}: a structure is needed, got {printed(treedef)}", hint="tree.structure(example)")


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return base.flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree, without its leaves."""
    return base.flatten(tree, is_leaf)[1]


# -- functions on leaves


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree with ``f(leaf, *leaves of rest)`` in place of every leaf.

    Parameters
    ----------
    f
        A function of as many arguments as there are trees.
    rest
        Trees of the same structure; where `tree` has a leaf, they may also have a whole subtree.

    Raises
    ------
    TreeError
        The structures differ; the message says where.

    Examples
    --------
    >>> map(lambda p, g: p - g, {"w": 5.0, "b": 3.0}, {"w": 1.0, "b": 1.0})
    {'w': 4.0, 'b': 2.0}
    """
    columns, treedef = _columns("map", tree, rest, is_leaf)
    return base.unflatten(treedef, [f(*xs) for xs in zip(*columns, strict=True)])


def reduce(f: Callable[[Any, Any], Any], tree: Any, *initializer: Any, is_leaf: IsLeaf = None) -> Any:
    """The leaves combined by `f`, from the left: ``f(f(f(initializer, a), b), c)``.

    Examples
    --------
    >>> import operator
    >>> reduce(operator.add, {"a": 1, "b": (2, 3)})
    6
    """
    if len(initializer) > 1:
        raise UsageError(f"reduce takes one initializer, got {len(initializer)}")
    xs = leaves(tree, is_leaf)
    if not xs and not initializer:
        raise TreeError("reduce: the tree has no leaves", hint="reduce(f, tree, initializer)")
    return functools.reduce(f, xs, *initializer)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true."""
    return not [x for x in leaves(tree, is_leaf) if not x]


def broadcast(prefix: Any, tree: Any, is_leaf: IsLeaf = None) -> Any:
    """`prefix`, with each leaf repeated over the subtree of `tree` that stands at its place.

    Examples
    --------
    >>> broadcast({"w": 0.1, "b": None}, {"w": (1, 2), "b": None})
    {'w': (0.1, 0.1), 'b': None}
    """
    (xs, subtrees), treedef = _columns("broadcast", prefix, (tree,), is_leaf)

    def repeated(x: Any, subtree: Any) -> Any:
        sub = structure(subtree, is_leaf)
        return base.unflatten(sub, [x] * sub.num_leaves)

    return base.unflatten(treedef, [repeated(x, s) for x, s in zip(xs, subtrees, strict=True)])


def transpose(outer: PyTreeDef, inner: PyTreeDef | None, tree: Any) -> Any:
    """Turn a tree of trees inside out: structure `outer` of `inner` becomes `inner` of `outer`.

    Parameters
    ----------
    inner
        The structure of the inner trees; None: that of the first one.

    Examples
    --------
    >>> pairs = {"a": (1, 2), "b": (3, 4)}
    >>> transpose(structure({"a": 0, "b": 0}), structure((0, 0)), pairs)
    ({'a': 1, 'b': 3}, {'a': 2, 'b': 4})
    """
    _require_structure("transpose", outer)
    _require_structure("transpose", structure(()) if inner is None else inner)
    subtrees = _flatten_up_to("transpose", outer, tree, "tree")
    if inner is None:
        inner = structure(subtrees[0]) if subtrees else structure(())
    rows = [_flatten_up_to("transpose", inner, s, "the inner tree") for s in subtrees]
    columns = [[row[i] for row in rows] for i in range(inner.num_leaves)]
    return base.unflatten(inner, [base.unflatten(outer, column) for column in columns])


def _columns(name: str, tree: Any, rest: tuple[Any, ...], is_leaf: IsLeaf) -> tuple[list[list[Any]], PyTreeDef]:
    """The leaves of each tree, as aligned lists."""
    first, treedef = base.flatten(tree, is_leaf)
    return [first, *[_flatten_up_to(name, treedef, r, f"tree {i}") for i, r in enumerate(rest, 2)]], treedef


def _flatten_up_to(name: str, treedef: PyTreeDef, tree: Any, what: str) -> list[Any]:
    """What `tree` has where `treedef` has its leaves."""
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError, AttributeError) as error:
        raise TreeError(f"{name}: different structures {_first_difference(treedef, tree, what)}") from error


def _first_difference(treedef: PyTreeDef, tree: Any, what: str) -> str:
    """Where `tree` first fails to continue `treedef`, for an error: ``at tree.b[0]: expected a leaf ...``."""

    def walk(node: PyTreeDef, part: Any, path: tuple[Any, ...]) -> str:
        if node.is_leaf():
            return ""
        children, found = optree.tree_flatten(part, lambda x: x is not part, namespace=base.NAMESPACE)
        if found.type is not node.type or found.entries() != node.entries() or len(children) != len(node.entries()):
            here = f"at {what}{base.path_string(path)}"
            if found.type is not node.type:
                return f"{here}: expected {_kind(node)}, got {_kind(found)}"
            return f"{here}: expected {_kind(node)} with {_entries(node)}, got {_entries(found)}"
        for entry, child, sub in zip(node.entries(), node.children(), children, strict=True):
            difference = walk(child, sub, (*path, entry))
            if difference:
                return difference
        return ""

    return walk(treedef, tree, ()) or f"in {what}: node data differ: {treedef} and {structure(tree)}"


def _kind(node: PyTreeDef) -> str:
    if node.type is None:
        return "a leaf"
    return "None" if node.type is type(None) else f"a {node.type.__name__}"


def _entries(node: PyTreeDef) -> str:
    entries = node.entries()
    if entries == list(range(len(entries))):
        return f"{len(entries)} children"
    return f"keys {', '.join([repr(e) for e in entries])}"


# -- paths


@dataclass(frozen=True, slots=True)
class DictKey:
    """A step of a path: into a dict, by key."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """A step of a path: into a list, tuple or deque, by index."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True, slots=True)
class GetAttrKey:
    """A step of a path: into a namedtuple, dataclass or registered class, by attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True, slots=True)
class FlattenedIndexKey:
    """A step of a path: into a registered class, by the position of the child."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = DictKey | SequenceKey | GetAttrKey | FlattenedIndexKey
KeyPath = tuple[KeyEntry, ...]


def _key(entry: Any) -> KeyEntry:
    """A step of a path, from optree's description of it."""
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.entry)
    if isinstance(entry, optree.NamedTupleEntry | optree.StructSequenceEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.entry)
    if isinstance(entry, optree.GetAttrEntry) and isinstance(entry.entry, str):
        return GetAttrKey(entry.entry)
    return FlattenedIndexKey(entry.entry)


def _paths(treedef: PyTreeDef) -> list[KeyPath]:
    return [tuple([_key(entry) for entry in accessor]) for accessor in treedef.accessors()]


def flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """As `flatten`, with the path of each leaf: a list of pairs ``(path, leaf)``, and the structure."""
    xs, treedef = base.flatten(tree, is_leaf)
    return list(zip(_paths(treedef), xs, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """The leaves of a tree with their paths.

    Examples
    --------
    >>> for path, leaf in leaves_with_path({"w": 2.0, "b": [1.0, 0.5]}):
    ...     print(keystr(path), leaf)
    ['b'][0] 1.0
    ['b'][1] 0.5
    ['w'] 2.0
    """
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """As `map`, with the path of the leaf as the first argument of `f`.

    Examples
    --------
    >>> map_with_path(lambda path, x: 0.0 if keystr(path) == "['b']" else x, {"w": 2.0, "b": 1.0})
    {'w': 2.0, 'b': 0.0}
    """
    columns, treedef = _columns("map_with_path", tree, rest, is_leaf)
    return base.unflatten(treedef, [f(*xs) for xs in zip(_paths(treedef), *columns, strict=True)])


def keystr(path: Iterable[KeyEntry], *, simple: bool = False, separator: str = "") -> str:
    """A path as Python would write it behind the name of the tree.

    Parameters
    ----------
    simple
        Only the bare keys, with `separator` between them.

    Examples
    --------
    >>> path = (DictKey("layers"), SequenceKey(0), GetAttrKey("w"))
    >>> keystr(path), keystr(path, simple=True, separator="/")
    ("['layers'][0].w", 'layers/0/w')
    """
    if not isinstance(separator, str) or not isinstance(path, Iterable):
        raise UsageError(f"keystr: a path and a string are needed, got {printed(path)} and {printed(separator)}")
    if not simple:
        return separator.join([str(entry) for entry in path])
    return separator.join([str(_raw(entry)) for entry in path])


def _raw(entry: Any) -> Any:
    """The bare key of a step of a path."""
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return getattr(entry, name)
    return entry


# -- new kinds of nodes


def register_pytree_node(
    nodetype: C,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Iterable[Any]], Any],
) -> C:
    """Make instances of a class nodes of pytrees.

    Parameters
    ----------
    nodetype
        The class; registering it twice raises `TreeError`.
    flatten_func
        Takes an instance, returns ``(children, aux)``; `aux` is static: hashable and compared by ``==``.
    unflatten_func
        Takes ``(aux, children)``. Children may be any objects, so it should not check them.

    Examples
    --------
    >>> class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    >>> _ = register_pytree_node(Pair, lambda p: ((p.x, p.y), None), lambda aux, xy: Pair(*xy))
    >>> leaves([Pair(1, 2), 3])
    [1, 2, 3]
    """
    return base.register_node(nodetype, flatten_func, unflatten_func)


def register_pytree_node_class(cls: C) -> C:
    """Decorator: make a class a node by its own methods ``tree_flatten(self)`` and ``tree_unflatten(aux, children)``.

    The first returns ``(children, aux)``, the second is a classmethod.
    """
    for name in ("tree_flatten", "tree_unflatten"):
        if not callable(getattr(cls, name, None)):
            raise UsageError(f"register_pytree_node_class: {getattr(cls, '__name__', cls)} has no method {name}")
    return base.register_node(cls, lambda node: node.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]


def register_pytree_with_keys(
    nodetype: C,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, Iterable[Any]], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> C:
    """As `register_pytree_node`, for a class whose children have names in paths and error messages.

    Parameters
    ----------
    flatten_with_keys
        Takes an instance, returns ``([(key, child), ...], aux)``. A key is a string or `GetAttrKey` (an attribute), or
        anything else, by which it is then shown.
    flatten_func
        Taken for JAX's signature; not needed.
    """

    def optree_flatten(node: Any) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
        pairs, aux = flatten_with_keys(node)
        pairs = list(pairs)
        return tuple([child for _, child in pairs]), aux, tuple([_raw(key) for key, _ in pairs])

    try:
        optree.register_pytree_node(
            nodetype,
            optree_flatten,
            unflatten_func,
            path_entry_type=optree.GetAttrEntry,
            namespace=base.NAMESPACE,
        )
    except ValueError as error:
        raise TreeError(f"{nodetype.__name__} is registered as a pytree node already") from error
    return nodetype


def register_dataclass(
    nodetype: Any = None,
    data_fields: Iterable[str] | None = None,
    meta_fields: Iterable[str] | None = None,
) -> Any:
    """Make a dataclass a node of pytrees. Also a decorator, with or without options.

    Parameters
    ----------
    data_fields
        Names of the fields that are children (arrays and subtrees). Default: all that are not in `meta_fields`
        and not marked ``field(metadata={"static": True})``.
    meta_fields
        Names of static fields: hashable, part of the structure.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @register_dataclass(meta_fields=["name"])
    ... @dataclass
    ... class Layer:
    ...     w: float
    ...     name: str
    >>> map(lambda x: -x, Layer(1.0, "first"))
    Layer(w=-1.0, name='first')
    """
    if nodetype is None:
        return functools.partial(register_dataclass, data_fields=data_fields, meta_fields=meta_fields)
    return base.register_dataclass(nodetype, data_fields, meta_fields)


def register_static(cls: C) -> C:
    """Make instances of a class nodes without children: static data, hashable and compared by ``==``. A decorator."""
    return base.register_node(cls, lambda node: ((), node), lambda node, _: node)


class Partial(functools.partial):  # type: ignore[type-arg]
    """`functools.partial` as a pytree: the function is static, the arguments that it holds are children.

    So a function with arrays in it can be passed to, and returned from, transformed functions.

    Examples
    --------
    >>> import funcgrad as fg
    >>> float(fg.jit(lambda f: f(10.0))(Partial(lambda a, x: a * x, 3.0)))
    30.0
    """


def _unflatten_partial(function: Any, children: Iterable[Any]) -> Partial:
    args, keywords = children
    return Partial(function, *args, **keywords)


base.register_node(Partial, lambda p: ((p.args, p.keywords), p.func), _unflatten_partial)

# -- one flat vector


def ravel_pytree(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves in one vector, and the function that puts such a vector back into a tree.

    Works under every transform: the vector and the tree are differentiable functions of each other.

    Parameters
    ----------
    tree
        A pytree of arrays and numbers.

    Returns
    -------
    flat : array of shape (n,)
        The leaves, raveled and joined; of their common dtype, float64 if there is no leaf.
    unravel : function
        Takes a vector of shape (n,); returns a tree with the structure, shapes and dtypes of `tree`. The vector may
        have another precision (optimizers like to work in float64), but not be complex where the leaves are real.

    Raises
    ------
    ShapeError, DtypeError
        By `unravel`, for a vector of another length or kind.

    Examples
    --------
    >>> import numpy as np
    >>> flat, unravel = ravel_pytree({"w": np.ones((2, 2)), "b": 3.0})
    >>> flat.tolist()
    [3.0, 1.0, 1.0, 1.0, 1.0]
    >>> unravel(2 * flat)["w"].tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    xs, treedef = base.flatten(tree)
    names = base.leaf_paths(treedef, "tree")
    operands = [array(x, f"ravel_pytree: {name}") for x, name in zip(xs, names, strict=True)]
    shapes = [x.shape for x in operands]
    dtypes = [x.dtype for x in operands]
    common = np.result_type(*dtypes) if dtypes else FLOAT
    ends = np.cumsum([prod(shape) for shape in shapes], dtype=int).tolist()
    size = ends[-1] if ends else 0
    parts = [fnp.ravel(fnp.astype(x, common)) for x in operands]
    flat = fnp.concatenate(parts) if parts else fnp.zeros(0, common)

    def unravel(vector: Any) -> Any:
        """The tree whose leaves are the pieces of a vector."""
        v = array(vector, "unravel")
        if v.shape != (size,):
            raise ShapeError(f"unravel: expected a vector of shape ({size},), got shape {v.shape}")
        if not np.can_cast(v.dtype, common, "same_kind"):
            raise DtypeError(f"unravel: expected {short(common)}, got {short(v.dtype)}")
        pieces = [_piece(v, end, shape, dtype) for end, shape, dtype in zip(ends, shapes, dtypes, strict=True)]
        return base.unflatten(treedef, pieces)

    return flat, unravel


def _piece(v: Any, end: int, shape: tuple[int, ...], dtype: Dtype) -> Any:
    return fnp.astype(fnp.reshape(v[end - prod(shape) : end], shape), dtype)


# -- JAX's names

tree_flatten = flatten
tree_unflatten = unflatten
tree_leaves = leaves
tree_structure = structure
tree_map = map
tree_reduce = reduce
tree_all = all
tree_broadcast = broadcast
tree_transpose = transpose
tree_flatten_with_path = flatten_with_path
tree_leaves_with_path = leaves_with_path
tree_map_with_path = map_with_path

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "ravel_pytree",
    "reduce",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_static",
    "structure",
    "transpose",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "unflatten",
]
