"""What a specialisation expects of a call, as a tree of types and as a table of words that native code reads.

In: a `Spec` (the tree of arguments, types of leaves, results) and the address of its program. Out: a `Native` for
`entry.make_entry`. The program is ``i64 program(ptr args)``. ``args[0]`` is its arena (64-byte aligned, null for size
0), ``args[1]`` the status block (8 words, zero), then come the data of each leaf, each constant and each result:
C-contiguous, aligned, of native dtype. Leaves and constants are read only. It returns 0, or a code that `on_status`
turns into an exception.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.lowering.entry_layout import (
    BOOL,
    DICT,
    FIELDS,
    HOLD,
    IS,
    LIST,
    NONE,
    OPENED,
    OWNING,
    RELEASE,
    STRONG,
    TUPLE,
    WEAK,
    WEAK_INT,
    WORD,
    available,
)
from funcgrad.lowering.pool import LARGE, POOL, ArenaPool

Dtype = np.dtype[Any]
MAX_WORDS = 4096  # items and pointers of one call live on the stack

# -- what a specialisation expects


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array, or a scalar of shape ``()``; `weak` means a Python float, int or complex and nothing else."""

    dtype: Dtype
    shape: tuple[int, ...] = ()
    weak: bool = False


@dataclass(frozen=True, slots=True)
class Static:
    """An argument that must be this very object."""

    value: Any


@dataclass(frozen=True, slots=True)
class Node:
    """A container of exactly this type: dict, list, tuple, a namedtuple class, or ``type(None)``.

    `keys` are those of a dict in the order of `children`, which is the order of leaves; `order` says in which order
    they were inserted (indices into `keys`), a hint for arguments and the order of the result's keys.
    """

    kind: type
    children: tuple[Tree, ...] = ()
    keys: tuple[str, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A node of any other class, taken apart and put together by Python.

    Attributes
    ----------
    opened
        Takes an object of exactly this type, returns a fresh list of its children, or None where it does not fit.
    closed
        Takes a list of children, returns an object.
    """

    kind: type
    children: tuple[Tree, ...]
    opened: Callable[[Any], list[Any] | None]
    closed: Callable[[list[Any]], Any]


Tree = Leaf | Static | Node | Registered


@dataclass(frozen=True)
class Spec:
    """What one specialisation takes and gives.

    Attributes
    ----------
    args : tuple of Tree
        Positional arguments.
    keywords : tuple of (str, Tree)
        Keyword arguments, sorted by name as the leaves are.
    results : Tree
        The result; its leaves in order are the program's outputs.
    constants : tuple of numpy.ndarray
        C-contiguous, aligned; never changed.
    donated : tuple of int
        For each output the leaf that becomes the result where a call allows it to be overwritten, or -1. The program
        works either way. Empty for none.
    arena_size : int
        Bytes of working memory.
    release_gil : bool
        Whether other threads run meanwhile.
    constants_first : bool
        Whether the program takes its constants before the leaves.
    """

    args: tuple[Tree, ...]
    results: Tree
    keywords: tuple[tuple[str, Tree], ...] = ()
    constants: tuple[np.ndarray[Any, Any], ...] = ()
    donated: tuple[int, ...] = ()
    arena_size: int = 0
    release_gil: bool = False
    constants_first: bool = False


@dataclass(frozen=True)
class Native:
    """A specialisation ready for `make_entry`."""

    table: bytes
    owned: tuple[Any, ...]
    needs: tuple[int, int, int, int]  # words on the stack: items, pointers, leaves, values


def tree_of(treedef: tree.Treedef, leaves: Iterable[Leaf]) -> Tree:
    """The tree of structure `treedef` with the given leaves."""
    remaining = iter(leaves)

    def walk(node: tree.Treedef) -> Tree:
        if node.is_leaf():
            return next(remaining)
        children = tuple([walk(c) for c in node.children()])
        if node.type in (list, tuple, type(None)) or _is_namedtuple(node.type):
            return Node(node.type, children)  # type: ignore[arg-type]
        if node.type is dict and all(type(k) is str for k in node.entries()):
            keys = tuple(node.entries())
            inserted = tree.unflatten(node, range(node.num_leaves))
            return Node(dict, children, keys, tuple([keys.index(k) for k in inserted]))
        return Registered(node.type, children, *tree.node_functions(node))  # type: ignore[arg-type]

    return walk(treedef)


def _is_namedtuple(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and isinstance(getattr(kind, "_fields", None), tuple)
        and kind.__itemsize__ == tuple.__itemsize__
        and len(kind._fields) > 0
    )


# -- as words

_TABLE = FIELDS["TABLE"].split()


def _raise_status(code: int, *status: int) -> None:
    raise RuntimeError(f"a compiled program stopped with status {code}: {status}")


class _Table:
    """Words under construction: the head first, then sections that the head points to."""

    def __init__(self) -> None:
        self.words = [0] * len(_TABLE)
        self.owned: list[Any] = []

    def own(self, obj: Any) -> int:
        self.owned.append(obj)
        return id(obj)

    def add(self, words: Sequence[int]) -> int:
        """Append a section; its offset in words."""
        self.words += words
        return len(self.words) - len(words)

    def section(self, count: str, start: str, rows: Sequence[Sequence[int]]) -> None:
        self[count] = len(rows)
        self[start] = self.add([w for row in rows for w in row])

    def __setitem__(self, field: str, value: int) -> None:
        self.words[_TABLE.index(field)] = value


def _leaf_row(table: _Table, leaf: Leaf, item: int) -> list[int] | None:
    dtype, shape = _native_dtype(leaf.dtype), leaf.shape
    if dtype is None or (leaf.weak and (shape or dtype not in _PYTHON)):
        return None
    size = dtype.itemsize
    for n in shape:
        size *= n
    kind, scalar = STRONG, 0
    if leaf.weak:
        kind, scalar = _PYTHON[dtype]
    elif shape == ():
        kind, scalar = BOOL if dtype.kind == "b" else STRONG, id(dtype.type)
    return [item, kind, table.own(dtype), dtype.num, len(shape), table.add(shape), scalar, size]


_PYTHON = {np.dtype(float): (WEAK, id(float)), np.dtype(complex): (WEAK, id(complex)), np.dtype(int): (WEAK_INT, 0)}


def _native_dtype(dtype: Dtype) -> Dtype | None:
    """NumPy's own object for a dtype that native code handles."""
    plain = dtype.char in "?bBhHiIlLqQefdFD" and dtype == np.dtype(dtype.char) and dtype.metadata is None
    return np.dtype(dtype.char) if plain else None


def _arguments(table: _Table, spec: Spec) -> tuple[list[list[int]], list[list[int]], int] | None:
    """Rows of nodes (parents first) and of leaves in order, and the number of items."""
    nodes: list[list[int]] = []
    leaves: list[list[int]] = []
    roots = [*spec.args, *[t for _, t in spec.keywords]]
    count = len(roots)

    def walk(node: Tree, item: int) -> bool:
        nonlocal count
        if isinstance(node, Leaf):
            row = _leaf_row(table, node, item)
            leaves.append(row or [])
            return row is not None
        if isinstance(node, Static):
            nodes.append([IS, item, table.own(node.value), 0, 0, 0])
            return True
        if node.kind is type(None):
            nodes.append([IS, item, id(None), 0, 0, 0])
            return True
        if isinstance(node, Registered):
            kind, keys = OPENED, table.own(node.opened)
        else:
            kind = LIST if node.kind is list else DICT if node.kind is dict else TUPLE
            keys = table.add([*[table.own(sys.intern(k)) for k in node.keys], *node.order])
        n, first = len(node.children), count
        count += n
        nodes.append([kind, item, table.own(node.kind), n, first, keys])
        return all([walk(child, first + i) for i, child in enumerate(node.children)])

    return (nodes, leaves, count) if all([walk(t, i) for i, t in enumerate(roots)]) else None


def _results(table: _Table, tree: Tree, outputs: list[Leaf]) -> tuple[list[list[int]], int]:
    """Rows of containers (children first), and where the result stands; the leaves are put into `outputs`."""
    rows: list[list[int]] = []
    pending: list[tuple[Node | Registered, list[int], int]] = []  # containers get their places after all leaves

    def walk(node: Tree) -> int:
        if isinstance(node, Leaf):
            outputs.append(node)
            return len(outputs) - 1
        assert isinstance(node, Node | Registered)
        children = [walk(child) for child in node.children]
        pending.append((node, children, -len(pending) - 1))
        return pending[-1][2]

    root = walk(tree)
    place = lambda i: i if i >= 0 else len(outputs) - 1 - i
    for node, children, index in pending:
        kind, call = TUPLE, 0
        if isinstance(node, Registered):
            kind, call = LIST, table.own(node.closed)
        elif node.kind in (list, dict, type(None)):
            kind = {list: LIST, dict: DICT}.get(node.kind, NONE)
        elif node.kind is not tuple:
            call = table.own(node.kind)
        order: Sequence[int] = range(len(children))
        keys: list[int] = []
        if isinstance(node, Node) and kind == DICT:
            order = node.order
            keys = [table.own(sys.intern(node.keys[k])) for k in order]
        first = table.add([*[place(children[k]) for k in order], *keys])
        rows.append([kind, len(children), first, place(index), call])
    return rows, place(root)


def prepare(
    spec: Spec,
    program: int,
    *,
    owner: Any,
    pool: ArenaPool | None = None,
    on_status: Callable[..., Any] = _raise_status,
) -> Native | None:
    """The table of a specialisation, or None where only Python can serve it.

    Parameters
    ----------
    program
        Address of ``i64 program(ptr args)``.
    owner
        What keeps `program` loaded.
    pool
        Arenas shared by all entries of the program; made here where it is None and `spec` has an arena.
    on_status
        Called with the code and the 8 words of the status block where the program returns a code; must raise.
    """
    if not available():
        return None
    table = _Table()
    arguments = _arguments(table, spec)
    if arguments is None:
        return None
    nodes, leaves, items = arguments
    outputs: list[Leaf] = []
    builds, root = _results(table, spec.results, outputs)
    dtypes = [_native_dtype(o.dtype) for o in outputs]
    if any([d is None for d in dtypes]):
        return None
    donated = spec.donated or (-1,) * len(outputs)
    assert len(donated) == len(outputs)
    rows = [
        [d, table.own(dtype), len(o.shape), table.add(o.shape), _allocator(table, o)]
        for o, dtype, d in zip(outputs, dtypes, donated, strict=True)
    ]
    if spec.arena_size and pool is None:
        pool = ArenaPool(spec.arena_size)
    needs = (items, 2 + len(leaves) + len(spec.constants) + len(outputs), len(leaves), len(outputs) + len(builds))
    if max(needs) > MAX_WORDS:
        return None
    opened = any([row[0] == OPENED for row in nodes])
    nested = any(row[0] >= len(spec.args) + len(spec.keywords) for row in leaves)
    table["PROGRAM"] = program
    table["FLAGS"] = RELEASE * spec.release_gil | HOLD * (spec.release_gil or nested) | OWNING * opened
    table["POOL"] = pool.address if pool is not None and pool.size else 0
    table["ON_STATUS"] = table.own(on_status)
    table["LEAF_SLOT"] = 2 + len(spec.constants) * spec.constants_first
    table["CONST_SLOT"] = 2 + len(leaves) * (not spec.constants_first)
    table["OUT_SLOT"] = 2 + len(leaves) + len(spec.constants)
    table["ROOT"] = root
    table["ARGS"] = len(spec.args)
    table["KEYWORDS"] = len(spec.keywords)
    table["NAMES"] = table.add([table.own(sys.intern(name)) for name, _ in spec.keywords])
    table.section("NODE_COUNT", "NODES", nodes)
    table.section("LEAF_COUNT", "LEAVES", leaves)
    table.section("CONST_COUNT", "CONSTS", [[_constant(c)] for c in spec.constants])
    table.section("OUT_COUNT", "OUTS", rows)
    table.section("BUILD_COUNT", "BUILDS", builds)
    return Native(pack(table.words), (owner, pool, *spec.constants, *table.owned), needs)


def _allocator(table: _Table, out: Leaf) -> int:
    """What makes a large result; 0 for the others, which native code makes."""
    size = out.dtype.itemsize
    for n in out.shape:
        size *= n
    return table.own(partial(POOL.empty, out.shape, out.dtype)) if size >= LARGE else 0


def _constant(x: np.ndarray[Any, Any]) -> int:
    assert x.flags.c_contiguous and x.flags.aligned
    return int(x.__array_interface__["data"][0])


def pack(words: Sequence[int]) -> bytes:
    """Words as bytes, in the order of this machine."""
    return b"".join([(w & 0xFFFFFFFFFFFFFFFF).to_bytes(WORD, sys.byteorder) for w in words])
