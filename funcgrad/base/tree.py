"""Pytrees: nested containers of leaves, on optree.

dict, list, tuple, namedtuple, OrderedDict, defaultdict, deque and registered classes are nodes; ``None`` is an
empty node; everything else is a leaf. Dict keys are sorted, so they must be orderable.

    >>> leaves, treedef = flatten({"w": 1, "b": (2, None)})
    >>> leaves, leaf_paths(treedef, "params")
    ([2, 1], ('params.b[0]', 'params.w'))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import optree

from funcgrad.base.errors import TreeError, UsageError, printed

NAMESPACE = "funcgrad"
Treedef = optree.PyTreeSpec
Path = tuple[Any, ...]
C = TypeVar("C", bound=type)


@lru_cache(maxsize=4096)
def _require_orderable(treedef: Treedef) -> None:
    """Raise for dict keys that Python cannot sort; once per tree structure."""
    waiting = [treedef]
    while waiting:
        node = waiting.pop()
        waiting += node.children()
        if node.type is dict:
            keys = node.entries()
            try:
                sorted(keys)
            except TypeError:
                kinds = sorted({type(k).__name__ for k in keys})
                raise TreeError(
                    f"dict keys must be orderable, got a mix of {' and '.join(kinds)}: {printed(keys)}",
                    hint="use keys of one type, for example strings",
                ) from None


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Treedef]:
    """Leaves in order, and the structure to put them back."""
    try:
        leaves, treedef = optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _too_deep(error, "flattening") from None
    except (TypeError, RuntimeError) as error:
        if is_leaf is not None and (not callable(is_leaf) or "Unable to cast" in str(error)):
            raise UsageError(f"is_leaf is a function that returns True or False, got {printed(is_leaf)}") from None
        raise
    _require_orderable(treedef)
    return leaves, treedef


def _too_deep(error: RecursionError, what: str) -> Exception:
    """The error for a tree that optree does not walk to its end; the user's functions may recurse too, on their own."""
    if what not in str(error):
        return error
    return TreeError(f"a tree is nested more than {optree.MAX_RECURSION_DEPTH} deep, or contains itself")


def unflatten(treedef: Treedef, leaves: Iterable[Any]) -> Any:
    """The tree of structure `treedef` with the given leaves."""
    return optree.tree_unflatten(treedef, leaves)


def structure(tree: Any) -> Treedef:
    """The structure of a tree."""
    return flatten(tree)[1]


def node_functions(treedef: Treedef) -> tuple[Callable[[Any], list[Any] | None], Callable[[list[Any]], Any]]:
    """How an object is taken apart into its children, and put together, if its root is that of `treedef`.

    Returns
    -------
    opened
        Takes an object of the root's type, returns a fresh list of its children; None where its keys or static
        fields differ.
    closed
        Takes a list of children, returns an object.
    """
    one: Any = treedef.one_level()
    kind: Any = treedef.type
    entry: Any = optree.register_pytree_node.get(kind, namespace=NAMESPACE)

    def flattened(x: Any) -> list[Any] | None:
        children, found = optree.tree_flatten(x, lambda y: y is not x, namespace=NAMESPACE)
        return children if found == one else None

    if entry is None or entry.type is not kind or entry.kind is not optree.PyTreeKind.CUSTOM:
        return flattened, one.unflatten
    expected: list[Any] = []  # the static fields, once an object was found to fit

    def opened(x: Any) -> list[Any] | None:
        if not expected:
            children = flattened(x)
            if children is not None:
                expected.append(entry.flatten_func(x)[1])
            return children
        found = entry.flatten_func(x)
        return list(found[0]) if found[1] == expected[0] else None

    return opened, one.unflatten


def path_string(path: Iterable[Any]) -> str:
    """A path as the user would type it: ``.b[0]`` for the entries ``("b", 0)``."""
    parts = []
    for entry in path:
        if isinstance(entry, str) and entry.isidentifier():
            parts.append(f".{entry}")
        else:
            parts.append(f"[{entry!r}]")
    return "".join(parts)


@lru_cache(maxsize=4096)
def leaf_paths(treedef: Treedef, root: str = "") -> tuple[str, ...]:
    """A readable path for every leaf, starting with `root`."""
    return tuple(root + path_string(path) for path in treedef.paths())


def describe_mismatch(what: str, expected: Treedef, found: Treedef) -> str:
    """One line that says where two structures differ first."""

    def walk(a: Treedef, b: Treedef, path: Path) -> str:
        here = f"at {what}{path_string(path)}" if path else f"in {what}"
        if a.is_leaf() and b.is_leaf():
            return ""
        if a.is_leaf() != b.is_leaf() or a.type is not b.type:
            return f"{here}: expected {_kind(a)}, got {_kind(b)}"
        if a.entries() != b.entries():
            return f"{here}: expected {described(a)}, got {described(b)}"
        for entry, x, y in zip(a.entries(), a.children(), b.children(), strict=True):
            found = walk(x, y, (*path, entry))
            if found:
                return found
        return ""

    return walk(expected, found, ()) or f"in {what}: node data differ: {expected} and {found}"


def described(treedef: Treedef) -> str:
    """The top of a structure, with how many entries it has or which keys: ``a tuple of 2``, ``a dict with a, b``."""
    if treedef.is_leaf() or treedef.type is type(None):
        return _kind(treedef)
    entries = treedef.entries()
    if all([isinstance(e, int) for e in entries]) and entries == list(range(len(entries))):
        return f"{_kind(treedef)} of {len(entries)}"
    return f"{_kind(treedef)} with {', '.join([str(e) for e in entries])}"


def _kind(treedef: Treedef) -> str:
    if treedef.is_leaf():
        return "a leaf"
    kind = treedef.type
    return "None" if kind is type(None) else f"a {kind.__name__}" if kind else "a leaf"


def broadcast_prefix(prefix: Any, treedef: Treedef, what: str, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """One entry of `prefix` for every leaf of `treedef`; `prefix` is a tree whose leaves stand for subtrees."""

    def walk(part: Any, node: Treedef, path: Path) -> list[Any]:
        if is_leaf(part):
            return [part] * node.num_leaves
        _, spec = optree.tree_flatten(part, lambda x: x is not part, namespace=NAMESPACE)
        if node.is_leaf() or spec.type is not node.type or spec.entries() != node.entries():
            where = f"{what}{path_string(path)}"
            raise TreeError(
                f"{where} is no prefix of the tree it describes: {printed(part)} stands where the tree has "
                f"{_kind(node)}",
                hint=f"use one value for a whole subtree, for example {what.split('[')[0]}=0",
            )
        children = spec.flatten_up_to(part) if hasattr(spec, "flatten_up_to") else []
        out: list[Any] = []
        for entry, child, sub in zip(node.entries(), children, node.children(), strict=True):
            out += walk(child, sub, (*path, entry))
        return out

    return walk(prefix, treedef, ())


def register_node(
    cls: C,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Iterable[Any]], Any],
) -> C:
    """Make instances of `cls` nodes of pytrees.

    Parameters
    ----------
    cls
        The class; registering it twice raises `TreeError`.
    flatten_func
        Takes an instance, returns ``(children, aux)``; `aux` is static: hashable and compared by ``==``.
    unflatten_func
        Takes ``(aux, children)``; must accept children of any type.
    """

    def optree_flatten(node: Any) -> tuple[Iterable[Any], Any]:
        children, aux = flatten_func(node)
        return tuple(children), aux

    try:
        optree.register_pytree_node(cls, optree_flatten, unflatten_func, namespace=NAMESPACE)
    except ValueError as error:
        raise TreeError(f"{cls.__name__} is registered as a pytree node already") from error
    except TypeError as error:
        raise UsageError(f"register_pytree_node takes a class, got {printed(cls)}") from error
    return cls


def _attributes(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda node: tuple([getattr(node, n) for n in names])


def register_dataclass(cls: C, data_fields: Iterable[str] | None = None, meta_fields: Iterable[str] | None = None) -> C:
    """Make a dataclass a pytree node; also works as a decorator.

    Parameters
    ----------
    data_fields
        Names of the fields that are children (arrays and subtrees). Default: all that are not in `meta_fields`
        and not marked ``field(metadata={"static": True})``.
    meta_fields
        Names of static fields: hashable, part of the structure.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise UsageError(f"register_dataclass takes a dataclass, got {printed(cls)}", hint="put @dataclass below it")
    fields = [f for f in dataclasses.fields(cls) if f.init]
    static = {f.name for f in fields if f.metadata.get("static")} | set(meta_fields or ())
    data = tuple(data_fields) if data_fields is not None else tuple(f.name for f in fields if f.name not in static)
    meta = tuple(f.name for f in fields if f.name not in data)
    unknown = (set(data) | static) - {f.name for f in fields}
    if unknown:
        raise UsageError(f"{cls.__name__} has no field {sorted(unknown)[0]!r}")

    data_of, meta_of = _attributes(data), _attributes(meta)

    def flatten_func(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
        try:
            return data_of(node), meta_of(node), data
        except AttributeError as error:
            raise TreeError(f"a {cls.__name__} has no value for a field: {error}") from error

    def unflatten_func(aux: tuple[Any, ...], children: Iterable[Any]) -> Any:
        node = object.__new__(cls)
        for name, value in zip((*data, *meta), (*children, *aux), strict=True):
            object.__setattr__(node, name, value)
        return node

    try:
        register: Any = optree.register_pytree_node
        register(cls, flatten_func, unflatten_func, path_entry_type=optree.GetAttrEntry, namespace=NAMESPACE)
    except ValueError as error:
        raise TreeError(f"{cls.__name__} is registered as a pytree node already") from error
    return cls
