"""Functions that Numba compiled, as machine code calls them: with a table of addresses (`foreign`).

In: a foreign equation that says what it calls (`core.primitive.Compiled`). Out: an entry compiled by Numba, or None if
its types have none; then the way goes through Python, which converts, or raises what there is to say.

    def body(table):                                   for (x: f64[3], n: i64[]) -> f64[]
        v0 = carray(pointer(table, 0), (3,), t0)
        v1 = carray(pointer(table, 1), (), t1)
        v2 = carray(pointer(table, 2), (), t2)
        a0 = carray(pointer(table, 3), (3,), t0)       a copy: the function may write into it
        a0[...] = v0
        a1 = v1[()]
        r = function(a0, a1)
        v2[()] = r

An exception in it is made in the thread of the call, and left in the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from funcgrad.base.dtypes import short
from funcgrad.base.errors import CallbackError
from funcgrad.base.tree import Treedef, leaf_paths
from funcgrad.core.ir import Aval, Equation, make_aval, static_key
from funcgrad.core.primitive import Compiled
from funcgrad.lowering.foreign import DONE, compiled_of, rows_of


class ResultShape(Exception):
    """Raised by compiled code: the shape of a result is not the declared one."""

    def explained(self) -> CallbackError:
        """The same, for the user."""
        who, path, dtype, shape, declared = self.args
        found = f"{dtype}[{','.join(map(str, shape))}]"
        return CallbackError(f"{who} returns {found} as {path}, declared is {declared}", hint="declare what it returns")


def numba_entry(e: Equation) -> Any:
    """A ``cfunc`` for a foreign equation, which keeps alive what it calls; None if there is none."""
    c = compiled_of(e)
    if c is None:
        return None
    inputs, outputs = [a.aval for a in e.inputs], [v.aval for v in e.outputs]
    key = (c.arguments, c.result, static_key(tuple(c.keywords.items())), c.levels, (*inputs, *outputs), len(inputs))
    if key not in c.entries:
        c.entries[key] = _compiled(c, inputs, outputs)
    return c.entries[key]


def _compiled(c: Compiled, inputs: list[Aval], outputs: list[Aval]) -> Any:
    import numba

    call = _expression(c.arguments, iter([f"a{k}" for k in range(len(inputs))]))
    if call is None:
        return None
    kinds = [_numba_type(a) for a in rows_of(c, inputs)]
    try:
        returned = _returned(c, kinds)
        if returned is None or not _agrees(c.result, returned, iter(_results(c, outputs))):
            return None
        text = _text(c, call, inputs, outputs)
        pointer, entry_of = _intrinsics()
        names = {"function": c.function, "carray": numba.carray, "pointer": pointer, "ResultShape": ResultShape}
        names |= {f"t{k}": a.dtype for k, a in enumerate((*inputs, *outputs))}
        names |= {f"given_{k}": x for k, x in c.keywords.items()}
        exec(compile(text, f"<call of {c.who}>", "exec"), names)
        return entry_of(names["body"])
    except Exception:  # whatever Numba, or the types of the user's, say of it: Python says it when it is called
        return None


def _results(c: Compiled, outputs: Sequence[Aval]) -> list[Aval]:
    """The types of the results of one call."""
    return [make_aval(a.shape[len(c.levels) :], a.dtype) for a in outputs]


# -- types


def _numba_type(aval: Aval) -> Any:
    import numba

    dtype = numba.from_dtype(aval.dtype)
    return numba.types.Array(dtype, aval.ndim, "C") if aval.shape else dtype


def _returned(c: Compiled, kinds: list[Any]) -> Any:
    """The Numba type of the result for arguments of these types."""
    import numba
    from numba.core.registry import cpu_target
    from numba.np.numpy_support import as_dtype

    structured = _typed(c.arguments, iter(kinds))
    keywords = {k: numba.typeof(x) for k, x in c.keywords.items()}
    kind = numba.typeof(c.function)
    signature = kind.get_call_type(cpu_target.typing_context, structured.types, keywords)
    if signature is None:
        return None
    if isinstance(kind, numba.types.ExternalFunctionPointer):  # C takes anything that is a number, and cuts it off
        pairs = zip(structured.types, signature.args, strict=True)
        if not all([np.can_cast(as_dtype(given), as_dtype(taken), "safe") for given, taken in pairs]):
            return None
    return numba.types.unliteral(signature.return_type)


def _typed(t: Treedef, kinds: Iterator[Any]) -> Any:
    import numba

    if t.is_leaf():
        return next(kinds)
    return numba.types.Tuple([_typed(child, kinds) for child in t.children()])


def _agrees(t: Treedef, found: Any, declared: Iterator[Aval]) -> bool:
    """Whether a result of a Numba type can be stored as it is declared; numbers are converted as Python's are."""
    import numba
    from numba.np.numpy_support import as_dtype

    types = numba.types
    if not t.is_leaf():
        fits = t.type is tuple and isinstance(found, types.Tuple | types.UniTuple) and len(found) == t.num_children
        return fits and all([_agrees(child, f, declared) for child, f in zip(t.children(), found, strict=True)])
    aval = next(declared)
    if isinstance(found, types.Array):
        return bool(found.ndim == aval.ndim and as_dtype(found.dtype) == aval.dtype)
    if aval.shape or not isinstance(found, types.Boolean | types.Integer | types.Float):
        return False
    dtype = as_dtype(found)
    return aval.dtype.kind == "f" or np.can_cast(dtype, aval.dtype, "safe")


# -- text


def _expression(t: Treedef, leaves: Iterator[str]) -> str | None:
    """A tree of tuples as an expression; None for another one. The outermost tuple is the list of arguments."""
    if t.is_leaf():
        return next(leaves)
    if t.type is not tuple:
        return None
    parts = [_expression(child, leaves) for child in t.children()]
    return None if None in parts else f"({''.join([f'{p}, ' for p in parts])})"


def _text(c: Compiled, call: str, inputs: list[Aval], outputs: list[Aval]) -> str:
    """The body; see the top of this file."""
    count = len(inputs)
    lines = ["def body(table):"]
    for k, a in enumerate((*inputs, *outputs)):
        lines.append(f"    v{k} = carray(pointer(table, {k}), {a.shape}, t{k})")
    rows = rows_of(c, inputs)
    arrays = [k for k, a in enumerate(rows) if a.shape]
    for place, k in enumerate(arrays, count + len(outputs)):
        lines.append(f"    a{k} = carray(pointer(table, {place}), {rows[k].shape}, t{k})")
    pad = "    "
    for level, (size, _) in enumerate(c.levels):
        lines.append(f"{pad}for i{level} in range({size}):")
        pad += "    "
    for k, a in enumerate(inputs):
        index = [f"i{level}" for level, (_, flags) in enumerate(c.levels) if flags[k]]
        row = f"v{k}[{', '.join(index) or '()'}]" if index or not a.shape else f"v{k}"
        lines.append(f"{pad}a{k}[...] = {row}" if rows[k].shape else f"{pad}a{k} = {row}")
    keywords = "".join([f"{k}=given_{k}, " for k in c.keywords])
    lines.append(f"{pad}r = function({call[1:-1]}{keywords})")
    paths = leaf_paths(c.result, "result")
    index = [f"i{level}" for level in range(len(c.levels))]
    for k, (a, path, place) in enumerate(zip(_results(c, outputs), paths, leaf_paths(c.result, "r"), strict=True)):
        target = f"v{count + k}[{', '.join([*index, '...'] if a.shape else index) or '()'}]"
        if a.shape:
            told = f"{c.who!r}, {path!r}, {short(a.dtype)!r}, shape, {str(a)!r}"
            lines += [f"{pad}shape = {place}.shape", f"{pad}if shape != {a.shape}:"]
            lines.append(f"{pad}    raise ResultShape({told})")  # Numba frees here what is not read any more
        lines.append(f"{pad}{target} = {place}")
    return "\n".join(lines) + "\n"


# -- the entry


@cache
def _intrinsics() -> tuple[Any, Callable[[Any], Any]]:
    """``pointer(table, k)``, and what makes an entry of a body."""
    from llvmlite import ir
    from numba import cfunc, njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    word, address = ir.IntType(64), types.voidptr

    @intrinsic
    def pointer(typingctx: Any, table: Any, k: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            places = builder.bitcast(args[0], args[0].type.as_pointer())
            return builder.load(builder.gep(places, [args[1]]))

        return address(address, types.intp), codegen

    def kept(context: Any, builder: Any, status: Any, words: Any) -> None:
        """Make the exception of a failed call, and store a reference to it."""
        api = context.get_python_api(builder)
        gil = api.gil_ensure()
        context.call_conv.raise_error(builder, api, status)
        parts = [cgutils.alloca_once_value(builder, ir.Constant(api.pyobj, None)) for _ in range(3)]

        def python(name: str, result: Any, *args: Any) -> Any:
            kind = ir.FunctionType(result, [a.type for a in args])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

        python("PyErr_Fetch", ir.VoidType(), *parts)
        python("PyErr_NormalizeException", ir.VoidType(), *parts)
        kind, value, trace = [builder.load(p) for p in parts]
        with builder.if_then(cgutils.is_not_null(builder, trace)):
            python("PyException_SetTraceback", ir.IntType(32), value, trace)
        slot = builder.gep(builder.bitcast(words, api.pyobj.as_pointer()), [ir.Constant(word, 1)])
        builder.store(value, slot)
        api.decref(kind)
        api.decref(trace)
        api.gil_release(gil)

    def entry_of(body: Any) -> Any:
        function = njit(types.void(address))(body)
        (compiled,) = function.overloads.values()

        @intrinsic
        def attempt(typingctx: Any, table: Any, words: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                context.add_linking_libs([compiled.library])
                callee = context.declare_function(builder.module, compiled.fndesc)
                convention, described = context.call_conv, compiled.fndesc
                status, _ = convention.call_function(builder, callee, described.restype, described.argtypes, [args[0]])
                with builder.if_then(status.is_error, likely=False):
                    kept(context, builder, status, args[1])
                return builder.select(status.is_error, ir.Constant(word, 0), ir.Constant(word, DONE))

            return types.int64(address, address), codegen

        @cfunc(types.int64(address, address))
        def entry(table: Any, words: Any) -> Any:
            return attempt(table, words)

        entry.held = function
        return entry

    return pointer, entry_of


__all__ = ["ResultShape", "numba_entry"]
