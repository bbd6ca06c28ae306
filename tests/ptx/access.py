"""Instructions that touch memory: `ld`, `st`, `atom`, `red`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.arithmetic import dtype
from tests.ptx.checks import Kind, check, resolve
from tests.ptx.errors import Uninitialised
from tests.ptx.parse import Mem, Operand, Reg, Sink, Sym, Vec
from tests.ptx.races import ATOMIC, ATOMIC_READ, READ, WRITE
from tests.ptx.registers import Get, Scope, reader, writer

Array = Any
Run = Callable[[Any, Any], None]
SPACE = r"(?:\.(?P<space>global|shared|shared::cta|local|const|param))?"
STRONG = r"(?P<strong>\.volatile|(?:\.(?:relaxed|acquire|release)\.(?:cta|gpu|sys)))?"
LD = re.compile(
    rf"ld{STRONG}{SPACE}(?P<nc>\.nc)?(?:\.(?:ca|cg|cs|lu|cv))?(?:\.L1::\w+)?(?:\.L2::\w+)?(?P<vec>\.v[24])?"
    r"\.(?P<type>[bsu](?:8|16|32|64)|f32|f64)"
)
ST = re.compile(
    rf"st{STRONG}{SPACE}(?:\.(?:wb|cg|cs|wt))?(?:\.L1::\w+)?(?P<vec>\.v[24])?\.(?P<type>[bsu](?:8|16|32|64)|f32|f64)"
)
ATOM = re.compile(
    rf"(?:atom|red)(?:\.(?:relaxed|acquire|release|acq_rel)(?:\.(?:cta|gpu|sys))?|\.(?:cta|gpu|sys))*{SPACE}"
    r"(?:\.(?:cta|gpu|sys))?\.(?P<op>and|or|xor|cas|exch|add|inc|dec|min|max)\.(?P<type>[bsu](?:16|32|64)|f32|f64)"
)


def address(scope: Scope, operand: Operand) -> Get:
    """The addresses that an operand in brackets means."""
    if not isinstance(operand, Mem):
        raise scope.unknown(f"{operand} is no place in memory")
    base, offset = operand.base, np.int64(operand.offset)
    if isinstance(base, Reg):
        have = scope.register(base.name)[1]
        get = reader(scope, base, "s64" if dtype(have).itemsize == 8 else "u32")
    else:
        get = reader(scope, base, "s64")
    return lambda m, threads: np.broadcast_to(get(m, threads).astype(np.int64) + offset, (m.size(threads),))


def items(operand: Operand, vec: str | None, scope: Scope) -> tuple[Operand, ...]:
    """The registers of a vector access, or the one of another."""
    found = operand.items if isinstance(operand, Vec) else (operand,)
    if len(found) != (int(vec[2:]) if vec else 1):
        raise scope.unknown("a vector of another length")
    return found


# -- loads and stores


def load(scope: Scope, place: int) -> Run:
    """``ld``."""
    i = scope.instruction
    assert i is not None
    found = LD.fullmatch(i.opcode)
    if not found or len(i.operands) != 2:
        raise scope.unknown("unknown instruction")
    space, type, nc, strong = found["space"] or "generic", found["type"], bool(found["nc"]), bool(found["strong"])
    to = items(i.operands[0], found["vec"], scope)
    puts = [writer(scope, o, type, loose=True) for o in to]
    if space == "param":
        return _load_parameter(scope, i.operands[1], type, puts)
    if nc and space != "global":
        raise scope.unknown("unknown instruction")
    where, d, count = address(scope, i.operands[1]), dtype(type), len(puts)
    nbytes = d.itemsize * count
    space = space.partition(":")[0]
    kind = Kind(ATOMIC_READ if strong else READ, i.opcode, nbytes)

    def run(m: Any, threads: Any) -> None:
        at = where(m, threads)
        parts = resolve(m, threads, space, at, nbytes)
        values = None
        for region, offset, sel in parts:
            check(m, threads, kind, at, region, offset, sel)
            got = region.elements(d, count)[offset // nbytes]
            if len(parts) == 1:
                values = got
            else:
                values = np.empty((len(at), *got.shape[1:]), d) if values is None else values
                values[sel] = got
        assert values is not None
        if count == 1:
            puts[0](m, threads, values)
        else:
            for k, put in enumerate(puts):
                put(m, threads, values[:, k].copy())

    return run


def store(scope: Scope, place: int) -> Run:
    """``st``."""
    i = scope.instruction
    assert i is not None
    found = ST.fullmatch(i.opcode)
    if not found or len(i.operands) != 2 or found["space"] == "const":
        raise scope.unknown("unknown instruction")
    space, type, strong = found["space"] or "generic", found["type"], bool(found["strong"])
    gets = [reader(scope, o, type, loose=True) for o in items(i.operands[1], found["vec"], scope)]
    if space == "param":
        return _store_parameter(scope, i.operands[0], type, gets)
    where, d, count = address(scope, i.operands[0]), dtype(type), len(gets)
    nbytes = d.itemsize * count
    space = space.partition(":")[0]
    kind = Kind(ATOMIC if strong else WRITE, i.opcode, nbytes)

    def run(m: Any, threads: Any) -> None:
        at = where(m, threads)
        parts = resolve(m, threads, space, at, nbytes)
        values = [get(m, threads) for get in gets]
        for region, offset, sel in parts:
            check(m, threads, kind, at, region, offset, sel)
            view = region.elements(d, count)
            at_ = offset // nbytes
            for k, value in enumerate(values):
                picked = value[sel] if getattr(value, "ndim", 0) else value
                if count == 1:
                    view[at_] = picked
                else:
                    view[at_, k] = picked

    return run


# -- parameters


def _parameter(scope: Scope, operand: Operand, nbytes: int) -> tuple[str, int]:
    if not isinstance(operand, Mem) or not isinstance(operand.base, Sym):
        raise scope.unknown("a computed address of a parameter")
    name, offset = operand.base.name, operand.offset + operand.base.offset
    v = scope.function.variables.get(name)
    if v is None or v.space != "param" or not 0 <= offset <= v.nbytes - nbytes:
        raise scope.unknown(f"no parameter {name} of so many bytes")
    return name, offset


def _load_parameter(scope: Scope, operand: Operand, type: str, puts: list[Any]) -> Run:
    d = dtype(type)
    name, offset = _parameter(scope, operand, d.itemsize * len(puts))
    function = scope.function

    def of_kernel(m: Any, threads: Any) -> None:
        values = m.launch.arguments[name][offset : offset + d.itemsize * len(puts)].view(d)
        for value, put in zip(values, puts, strict=True):
            put(m, threads, value)

    def of_function(m: Any, threads: Any) -> None:
        p = m.parameter(function, name)
        for k, put in enumerate(puts):
            part = slice(offset + k * d.itemsize, offset + (k + 1) * d.itemsize)
            written = p.written[threads, part].all(axis=1)
            if not written.all():
                m.fail(Uninitialised, f"parameter {name} is read, but was never written", m.numbers(threads)[~written])
            put(m, threads, np.ascontiguousarray(p.data[threads, part]).view(d)[:, 0])

    return of_kernel if function.entry and name in [p.name for p in function.params] else of_function


def _store_parameter(scope: Scope, operand: Operand, type: str, gets: list[Get]) -> Run:
    d = dtype(type)
    name, offset = _parameter(scope, operand, d.itemsize * len(gets))
    function = scope.function

    def run(m: Any, threads: Any) -> None:
        p = m.parameter(function, name)
        for k, get in enumerate(gets):
            part = slice(offset + k * d.itemsize, offset + (k + 1) * d.itemsize)
            value = np.ascontiguousarray(np.broadcast_to(get(m, threads), (m.size(threads),)))
            p.data[threads, part] = value.view(np.uint8).reshape(len(value), d.itemsize)
            p.written[threads, part] = True

    return run


# -- atomic operations

UPDATES: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add, "min": np.minimum,
    "max": np.maximum, "exch": lambda old, x: x, "cas": lambda old, x, y: y if old == x else old,
    "inc": lambda old, x: old.dtype.type(0) if old >= x else old + old.dtype.type(1),
    "dec": lambda old, x: x if old == 0 or old > x else old - old.dtype.type(1),
}  # fmt: skip
OF_TYPE = {"and": "b", "or": "b", "xor": "b", "exch": "b", "cas": "b", "add": "usf", "min": "usf", "max": "usf"}


def atomic(scope: Scope, place: int) -> Run:
    """``atom`` and ``red``: the threads one after the other, in the order of their numbers."""
    i = scope.instruction
    assert i is not None
    found = ATOM.fullmatch(i.opcode)
    if not found or found["space"] in ("local", "const", "param"):
        raise scope.unknown("unknown instruction")
    name, type, returns = found["op"], found["type"], i.opcode.startswith("atom")
    if type[0] not in OF_TYPE.get(name, "u") or (type[0] == "f" and name != "add"):
        raise scope.unknown("unknown instruction")
    operands = list(i.operands)
    to = operands.pop(0) if returns else Sink()
    if len(operands) != (3 if name == "cas" else 2):
        raise scope.unknown("wrong number of operands")
    where, gets = address(scope, operands[0]), [reader(scope, o, type) for o in operands[1:]]
    put, d, update = writer(scope, to, type), dtype(type), UPDATES[name]
    space = (found["space"] or "generic").partition(":")[0]
    kind = Kind(ATOMIC, i.opcode, d.itemsize)

    def run(m: Any, threads: Any) -> None:
        at = where(m, threads)
        values = [np.broadcast_to(get(m, threads), at.shape) for get in gets]
        old = np.empty(at.shape, d)
        for region, offset, sel in resolve(m, threads, space, at, d.itemsize):
            changed = values[0][sel] ^ values[1][sel] if name == "cas" else None
            check(m, threads, kind, at, region, offset, sel, changed)
            old[sel] = in_turn(update, region.elements(d, 1), offset // d.itemsize, [v[sel] for v in values])
        put(m, threads, old)

    return run


def in_turn(update: Callable[..., Any], view: Array, unit: Array, values: list[Array]) -> Array:
    """The old values, while one thread after the other updates its unit."""
    old = np.empty(len(unit), view.dtype)
    if isinstance(update, np.ufunc):
        first = np.sort(unit)
        if (first[1:] != first[:-1]).all():  # each another one
            old[:] = view[unit]
            view[unit] = update(old, *values)
            return old
    for k, (u, *v) in enumerate(zip(unit.tolist(), *values, strict=True)):
        old[k] = x = view[u]
        view[u] = update(x, *v)
    return old


BUILDERS = {"ld": load, "st": store, "atom": atomic, "red": atomic}
