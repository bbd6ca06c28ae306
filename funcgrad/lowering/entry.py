"""Native entries: builtin functions that take Python objects, run a compiled program and return Python objects.

In: what a specialisation expects (`Spec`: the tree of arguments, types of leaves, results) and the address of its
program. Out: a builtin function. A call that fits no specialisation goes to a Python function with the same arguments.

    spec = Spec(args=(Leaf(F64, (3,)),), results=Leaf(F64, (3,)))
    native = prepare(spec, library["program"], owner=library)
    call = make_entry([native], fallback=python_function)

The program is ``i64 program(ptr args)``. ``args[0]`` is its arena (64-byte aligned, null for size 0), ``args[1]`` the
status block (8 words, zero), then come the data of each leaf, each constant and each result: C-contiguous, aligned,
of native dtype. Leaves and constants are read only. It returns 0, or a code that `on_status` turns into an exception.

Invariants: the machine code is one function for all entries (`entry_text`); what a specialisation expects stands in a
table of words. Nothing in a table changes once it is made. A builtin owns everything its table points to through its
``__self__``, a tuple. `available` compares each offset with what Python reports before the first entry is made; where
anything differs, and on free-threaded builds, there are no native entries and Python functions serve.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.core.array import Array
from funcgrad.lowering.cache import cached
from funcgrad.lowering.entry_text import FUNCTIONS, cold, hot
from funcgrad.lowering.machine import compile_object, header, load
from funcgrad.lowering.pool import LARGE, POOL, ArenaPool, Block

Dtype = np.dtype[Any]
MAX_WORDS = 4096  # items and pointers of one call live on the stack
MAX_TABLES = 8
WORD = 8

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


Tree = Leaf | Static | Node


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
        For each output the leaf whose memory it is written to, or -1. Empty for none.
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


def tree_of(treedef: tree.Treedef, leaves: Iterable[Leaf]) -> Tree | None:
    """The tree of structure `treedef` with the given leaves; None where it has nodes that only Python can walk."""
    remaining = iter(leaves)

    def walk(node: tree.Treedef) -> Tree | None:
        if node.is_leaf():
            return next(remaining)
        children = tuple([walk(c) for c in node.children()])
        if any([c is None for c in children]):
            return None
        if node.type in (list, tuple, type(None)) or _is_namedtuple(node.type):
            return Node(node.type, children)  # type: ignore[arg-type]
        if node.type is dict and all(type(k) is str for k in node.entries()):
            keys = tuple(node.entries())
            inserted = tree.unflatten(node, range(node.num_leaves))
            return Node(dict, children, keys, tuple([keys.index(k) for k in inserted]))  # type: ignore[arg-type]
        return None

    return walk(treedef)


def _is_namedtuple(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and isinstance(getattr(kind, "_fields", None), tuple)
        and kind.__itemsize__ == tuple.__itemsize__
        and len(kind._fields) > 0
    )


# -- the layout of objects and tables

_FIELDS = {
    "HEAD": "TABLE_COUNT FALLBACK CONTEXT SWITCH HITS MAX_ITEMS MAX_POINTERS MAX_LEAVES MAX_VALUES",
    "TABLE": "PROGRAM FLAGS POOL ON_STATUS ROOT ARGS KEYWORDS NAMES NODE_COUNT NODES LEAF_COUNT LEAVES "
    "LEAF_SLOT CONST_SLOT OUT_SLOT CONST_COUNT CONSTS OUT_COUNT OUTS BUILD_COUNT BUILDS DONATED_COUNT DONATED",
    "NODE": "NODE_KIND NODE_ITEM NODE_TYPE NODE_CHILDREN NODE_FIRST NODE_KEYS",
    "LEAF": "LEAF_ITEM LEAF_KIND LEAF_DESCR LEAF_NUMBER LEAF_NDIM LEAF_SHAPE LEAF_SCALAR LEAF_SIZE",
    "OUT": "OUT_ITEM OUT_DESCR OUT_NDIM OUT_SHAPE OUT_ALLOCATE",
    "BUILD": "BUILD_KIND BUILD_CHILDREN BUILD_FIRST BUILD_VALUE BUILD_CALL",
}
TUPLE, LIST, DICT, IS, NONE = range(5)
STRONG, BOOL, WEAK, WEAK_INT = range(4)
RELEASE, HOLD = 1, 2

_TABLE = _FIELDS["TABLE"].split()


def _numbers() -> dict[str, int]:
    """Every ``$NAME`` of the text: offsets in bytes, sizes in words."""
    table = {f"{name}_WORDS": len(fields.split()) for name, fields in _FIELDS.items()}
    table |= {field: WORD * i for fields in _FIELDS.values() for i, field in enumerate(fields.split())}
    table |= {"TUPLE": TUPLE, "LIST": LIST, "DICT": DICT, "IS": IS}
    table |= {"BOOL": BOOL, "WEAK": WEAK, "WEAK_INT": WEAK_INT, "RELEASE": RELEASE, "HOLD": HOLD}
    return table | {
        "TYPE": 8,
        "SIZE": 16,
        "VALUE": 16,
        "TUPLE_WORDS": tuple.__basicsize__ // WORD,
        "LIST_ITEMS": 24,
        "BYTES_DATA": bytes.__basicsize__ - 1,
        "BUILTIN_METHOD": 16,
        "BUILTIN_SELF": 24,
        "METHOD_FUNCTION": 8,
        "OBJECT_CALL": 16,
        "OBJECT_TARGET": 24,
        "ARRAY_DATA": 16,
        "ARRAY_NDIM": 24,
        "ARRAY_SHAPE": 32,
        "ARRAY_BASE": 48,
        "ARRAY_DESCR": 56,
        "ARRAY_FLAGS": 64,
        "ARRAY_BUFFER": 80,
        "ALIGNED_CONTIGUOUS": 0x101,
        "OWNED": 0x4,
        "WRITEABLE": 0x400,
        "DESCR_ORDER": 26,
        "DESCR_NUMBER": 28,
        "DESCR_METADATA": 56,
        "SWAPPED": ord(">") if sys.byteorder == "little" else ord("<"),
    }


NUMBERS = _numbers()


# -- objects that are called natively


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _TypeSpec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


def _address(name: str) -> int:
    value = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert value is not None
    return value


_BASETYPE, _VECTORCALL = 1 << 10, 1 << 11
_TP_CALL, _TP_MEMBERS, _SSIZE, _READONLY = 50, 72, 19, 1
_TP_FLAGS = 168


def _vectorcall_base() -> type:
    """A class with room for a vectorcall function after the head of its instances; made as C code makes it."""
    offset = _Member(b"__vectorcalloffset__", _SSIZE, NUMBERS["OBJECT_CALL"], _READONLY, None)
    members = (_Member * 2)(offset)
    slots = (_Slot * 3)(_Slot(_TP_CALL, _address("PyVectorcall_Call")), _Slot(_TP_MEMBERS, ctypes.addressof(members)))
    size = NUMBERS["OBJECT_CALL"] + WORD
    spec = _TypeSpec(b"funcgrad.lowering.entry.VectorcallBase", size, 0, _BASETYPE | _VECTORCALL, slots)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(_address("PyType_FromSpec"))
    base: type = make(ctypes.addressof(spec))
    return base


_SUPPORTED = (
    sys.implementation.name == "cpython"
    and sys.maxsize == 2**63 - 1
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
_Base: Any = _vectorcall_base() if _SUPPORTED else object


class NativeCallable(_Base):  # type: ignore[misc]
    """An object with attributes whose calls go to a builtin without a detour through Python: see `arm`.

    Instances of a subclass that defines ``__call__`` are called through it; give such an instance a class without
    it (``x.__class__ = ...``) once it is armed.
    """

    __slots__ = ("_target",)
    _target: Callable[..., Any]


def arm(x: NativeCallable, target: Callable[..., Any]) -> None:
    """Calls of `x` go to `target`, a builtin from `make_entry`; calls that run meanwhile finish with the old one."""
    x._target = target
    ctypes.c_void_p.from_address(id(x) + NUMBERS["OBJECT_CALL"]).value = _machinery()["call"]


def vectorcalled(cls: type) -> type:
    """A class decorator for subclasses of `NativeCallable` that do not define ``__call__``.

    Python 3.12 and later inherit the flag that says so; for 3.11, whose layout is final, it is set here. Without it
    calls work too, through a tuple.
    """
    if _SUPPORTED and sys.version_info < (3, 12):
        flags = ctypes.c_ulong.from_address(id(cls) + _TP_FLAGS)
        if flags.value == cls.__flags__:
            flags.value |= _VECTORCALL
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
    return cls


def _read(obj: Any, offset: int, kind: Any = ctypes.c_void_p) -> Any:
    return kind.from_address(id(obj) + offset).value


def _check_offsets() -> str:
    """What differs from the assumed layout of objects, or ''."""
    n = NUMBERS
    if sys.maxsize != 2**63 - 1 or object.__basicsize__ != 16:
        return "the head of objects"
    x = np.arange(6.0).reshape(2, 3)[:, ::-1]
    whole, meta = np.zeros((2, 3), np.int32), np.dtype("f4", metadata={"a": 1})
    pair, items, text, exported = (x, 1), [x, 1, 2], b"offset", np.zeros(3)
    view = memoryview(exported)
    flags = _read(whole, n["ARRAY_FLAGS"], ctypes.c_int)
    frozen = np.frombuffer(text, np.uint8)
    held = NativeCallable()
    held._target = text
    facts = {
        "ob_type": all(_read(o, n["TYPE"]) == id(type(o)) for o in (x, pair, items, text, 1.0, 1, "a", {}, None)),
        "tuple": [_read(pair, n["SIZE"]), _read(pair, 8 * n["TUPLE_WORDS"])] == [2, id(x)],
        "list": [_read(items, n["SIZE"]), ctypes.c_void_p.from_address(_read(items, n["LIST_ITEMS"])).value]
        == [3, id(x)],
        "bytes": ctypes.string_at(id(text) + n["BYTES_DATA"]) == text,
        "float": _read(-2.5, n["VALUE"], ctypes.c_double) == -2.5,
        "complex": ctypes.string_at(id(c := complex(1, -2)) + n["VALUE"], 16) == np.complex128(c).tobytes(),
        "data": _read(x, n["ARRAY_DATA"]) == x.__array_interface__["data"][0],
        "shape": [ctypes.c_ssize_t.from_address(_read(x, n["ARRAY_SHAPE"]) + 8 * i).value for i in range(2)] == [2, 3],
        "ndim": [_read(a, n["ARRAY_NDIM"], ctypes.c_int) for a in (x, np.zeros(()))] == [2, 0],
        "base": [_read(exported, n["ARRAY_BASE"]), _read(exported[1:], n["ARRAY_BASE"])] == [None, id(exported)],
        "descr": _read(x, n["ARRAY_DESCR"]) == id(x.dtype) == id(np.dtype("f8")),
        "flags": flags == whole.flags.num and flags & 0x505 == 0x505 and not x.flags.num & 1,
        "flag bits": [frozen.flags.num & 0x404, exported.flags.num & 0x404] == [0, 0x404],
        "buffer": not _read(whole, n["ARRAY_BUFFER"]) and bool(_read(exported, n["ARRAY_BUFFER"])) and len(view) == 3,
        "subclass": _read(x.view(Array), n["ARRAY_DATA"]) == _read(x, n["ARRAY_DATA"]),
        "dtype": all(_read(d, n["DESCR_NUMBER"], ctypes.c_int) == d.num for d in (x.dtype, whole.dtype, meta)),
        "byteorder": [
            chr(_read(d, n["DESCR_ORDER"], ctypes.c_uint8)) for d in map(np.dtype, ("f8", "i1", "<f8", ">f8"))
        ]
        == ["=", "|", *("=>" if sys.byteorder == "little" else "<=")],
        "metadata": not _read(x.dtype, n["DESCR_METADATA"]) and bool(_read(meta, n["DESCR_METADATA"])),
        "builtins": [_read(len, n["BUILTIN_SELF"]), ctypes.c_char_p.from_address(_read(len, n["BUILTIN_METHOD"])).value]
        == [id(len.__self__), b"len"],
        "slots": _read(held, n["OBJECT_TARGET"]) == id(text) and not _read(held, n["OBJECT_CALL"]),
        "scalars": all(
            ctypes.string_at(id(v) + n["VALUE"], v.itemsize) == v.tobytes()
            for v in [np.dtype(k).type(1) for k in "?bBhHiIlLefdFD"]
        ),
    }
    return ", ".join([name for name, holds in facts.items() if not holds])


# -- the machine code


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL_KEYWORDS = 0x0082
_NEW_FROM_DESCR, _TYPE = 94, 2  # slots of NumPy's C API


def _numpy_api() -> Any:
    import numpy._core._multiarray_umath as umath

    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(_address("PyCapsule_GetPointer"))
    return ctypes.cast(get(umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))


@cache
def _machinery() -> Any:
    """The native functions ``enter`` and ``call``; they stay loaded for the life of the process."""
    api = _numpy_api()
    objects = {"ndarray": np.ndarray, "Array": Array, "Block": Block, "int": int, "str": str}
    objects |= {"True": True, "False": False, "None": None, "builtin": type(len)}
    objects |= {"SystemError": SystemError, "TypeError": TypeError}
    imports = {name: id(value) for name, value in objects.items()}
    imports |= {name: _address(name) for name in FUNCTIONS}
    imports["PyArray_NewFromDescr"] = api[_NEW_FROM_DESCR]
    texts = {header() + hot(NUMBERS): 1, header() + cold(NUMBERS): 0}
    codes = [cached(text, level, partial(compile_object, text, level)) for text, level in texts.items()]
    library = load(codes, ["enter", "call"], imports)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # builtins may outlive this module
    return library


@cache
def available() -> bool:
    """Whether this Python and NumPy lay out their objects as native entries assume."""
    if not _SUPPORTED:
        return False
    wrong = _check_offsets()
    if not wrong and _numpy_api()[_TYPE] != id(np.ndarray):
        wrong = "the C API"
    if wrong:
        warnings.warn(
            f"native entries are off and calls go through Python: this Python or NumPy differs in {wrong}",
            RuntimeWarning,
            stacklevel=2,
        )
    return not wrong


# -- tables


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
    pending: list[tuple[Node, list[int], int]] = []  # containers get their places after all leaves

    def walk(node: Tree) -> int:
        if isinstance(node, Leaf):
            outputs.append(node)
            return len(outputs) - 1
        assert isinstance(node, Node)
        children = [walk(child) for child in node.children]
        pending.append((node, children, -len(pending) - 1))
        return pending[-1][2]

    root = walk(tree)
    place = lambda i: i if i >= 0 else len(outputs) - 1 - i
    for node, children, index in pending:
        kind, call = TUPLE, 0
        if node.kind in (list, dict, type(None)):
            kind = {list: LIST, dict: DICT}.get(node.kind, NONE)
        elif node.kind is not tuple:
            call = table.own(node.kind)
        order = node.order if kind == DICT else range(len(children))
        keys = [table.own(sys.intern(node.keys[k])) for k in order] if kind == DICT else []
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
    unflatten: Callable[[list[Any]], Any] | None = None,
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
    unflatten
        Makes the result out of the list of outputs, for results that have registered nodes: `spec.results` is then
        a list of leaves.
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
    if unflatten is not None:
        assert isinstance(spec.results, Node) and spec.results.kind is list
        builds[-1][-1] = table.own(unflatten)
    donated = spec.donated or (-1,) * len(outputs)
    assert len(donated) == len(outputs)
    rows = [
        [leaves[d][0] if d >= 0 else -1, table.own(dtype), len(o.shape), table.add(o.shape), _allocator(table, o)]
        for o, dtype, d in zip(outputs, dtypes, donated, strict=True)
    ]
    if spec.arena_size and pool is None:
        pool = ArenaPool(spec.arena_size)
    needs = (items, 2 + len(leaves) + len(spec.constants) + len(outputs), len(leaves), len(outputs) + len(builds))
    if max(needs) > MAX_WORDS:
        return None
    nested = any(row[0] >= len(spec.args) + len(spec.keywords) for row in leaves)
    table["PROGRAM"] = program
    table["FLAGS"] = RELEASE * spec.release_gil | HOLD * (spec.release_gil or nested)
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
    table.section("DONATED_COUNT", "DONATED", [[d] for d in donated if d >= 0])
    return Native(_pack(table.words), (owner, pool, *spec.constants, *table.owned), needs)


def _allocator(table: _Table, out: Leaf) -> int:
    """What makes a large result; 0 for the others, which native code makes."""
    size = out.dtype.itemsize
    for n in out.shape:
        size *= n
    return table.own(partial(POOL.empty, out.shape, out.dtype)) if size >= LARGE else 0


def _constant(x: np.ndarray[Any, Any]) -> int:
    assert x.flags.c_contiguous and x.flags.aligned
    return int(x.__array_interface__["data"][0])


def _pack(words: Sequence[int]) -> bytes:
    return b"".join([(w & 0xFFFFFFFFFFFFFFFF).to_bytes(WORD, sys.byteorder) for w in words])


def make_entry(
    natives: Sequence[Native],
    fallback: Callable[..., Any],
    *,
    name: str = "entry",
    context: ContextVar[Any] | None = None,
    switch: bytearray | None = None,
    hits: bytearray | None = None,
) -> Callable[..., Any]:
    """A builtin function that serves calls of `natives`, tried in order, and gives all others to `fallback`.

    Parameters
    ----------
    natives
        At most 8; those most often called first. A further specialisation means a further builtin: nothing that
        a running call uses changes.
    fallback
        Called with the very arguments of the call.
    context
        A variable that must be unset or None (a trace is open otherwise).
    switch
        Its first byte must be 0.
    hits
        Eight bytes, an integer in the machine's order: native code counts the calls that it serves.
    """
    assert len(natives) <= MAX_TABLES
    if not natives:
        return fallback
    pinned = [(ctypes.c_char * n).from_buffer(b) if b is not None else None for b, n in ((switch, 1), (hits, WORD))]
    needs = [max(column) for column in zip(*[n.needs for n in natives], strict=True)]
    head = [
        len(natives),
        id(fallback),
        id(context) if context is not None else 0,
        *[ctypes.addressof(b) if b is not None else 0 for b in pinned],
        *needs,
        *[id(n.table) + NUMBERS["BYTES_DATA"] for n in natives],
    ]
    method = _MethodDef(name.encode(), _machinery()["enter"], _FASTCALL_KEYWORDS, None)
    owned = (_pack(head), method, fallback, context, *pinned, *[(n.table, n.owned) for n in natives])
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Callable[..., Any] = new(_address("PyCFunction_NewEx"))(ctypes.addressof(method), owned, None)
    return made
