"""Looking inside: make_program, eval_shape, show."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.api.tracing import (
    Traced,
    boundary,
    function_name,
    leaf,
    leaf_names,
    require_callable,
    trace,
    value_and_aval,
)
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, ParameterError, printed
from funcgrad.core.ir import Aval, Program, make_aval
from funcgrad.lowering import DEVICES, LOWERINGS, NumbaModule, numba_module
from funcgrad.lowering.simplify import simplify
from funcgrad.numpy.operands import given_dtype, given_shape

FIRST: dict[str, Callable[[Program], str]] = {"program": str, "simplified": lambda p: str(simplify(p))}
"""The stages before targets differ."""
BACKENDS = {stage: backend for backend in (*LOWERINGS.values(), *DEVICES.values()) for stage in backend.stages}
STAGES = (*FIRST, *BACKENDS)


def stage_text(program: Program, stage: str, arch: str | None = None) -> str:
    """A stage of a Program as text."""
    return FIRST[stage](program) if stage in FIRST else BACKENDS[stage].text(program, stage, arch)


def ShapeDtypeStruct(shape: Any, dtype: Any) -> Aval:
    """A stand-in for an array of that shape and dtype, for `eval_shape` and `make_program`.

    Examples
    --------
    >>> import funcgrad as fg
    >>> str(fg.ShapeDtypeStruct((3, 4), "float32"))
    'f32[3,4]'
    """
    return make_aval(given_shape("ShapeDtypeStruct", shape), given_dtype("ShapeDtypeStruct", dtype))


def abstract_leaf(x: Any, name: str) -> Aval:
    """The type of a leaf: an array, a number, or anything with `shape` and `dtype`."""
    if isinstance(x, Aval):
        return x
    if not isinstance(x, np.ndarray | np.generic) and hasattr(x, "shape") and hasattr(x, "dtype"):
        return make_aval(tuple(x.shape), np.dtype(x.dtype), bool(getattr(getattr(x, "aval", None), "weak", False)))
    return value_and_aval(leaf(x, name))[1]


def abstract_trace(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], purpose: str) -> Traced:
    """Trace `f` on types alone; static arguments of a jitted function are values."""
    specialize = getattr(type(f), "specialized", None)
    if specialize is not None:
        return specialize(f, args, kwargs)  # type: ignore[no-any-return]
    leaves, treedef = tree.flatten((args, kwargs))
    args_tree = treedef.children()[0]
    names = leaf_names(f, args_tree, list(range(len(args))))
    names += [n for k in sorted(kwargs) for n in tree.leaf_paths(tree.structure(kwargs[k]), k)]
    inputs = [(None, abstract_leaf(x, n)) for x, n in zip(leaves, names, strict=True)]

    def function(tracers: list[Any]) -> Any:
        a, k = tree.unflatten(treedef, tracers)
        return f(*a, **k)

    return trace(function, inputs, names, name=function_name(f), purpose=purpose, shows=False)


def numba_code(f: Callable[..., Any], traced: Traced) -> NumbaModule:
    """A traced function as Numba source, with what its docstring begins with."""
    doc = (inspect.getdoc(f) or "").partition("\n\n")[0]
    results = tree.leaf_paths(traced.out_tree, "result")
    return numba_module(traced.program, doc=" ".join(doc.split()), results=results)


def make_program(f: Callable[..., Any]) -> Callable[..., Program]:
    """A function that traces `f` and returns the Program instead of running it.

    Arrays that `f` captured are the first inputs of the Program, ``c0, c1, ...``.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> print(fg.make_program(lambda x: -x)(np.ones(3)))  # doctest: +ELLIPSIS
    program f(x: f64[3]) -> f64[3] {
      a: f64[3] = neg x...
      return a
    }
    """
    require_callable(f, "make_program")

    @boundary
    def make(*args: Any, **kwargs: Any) -> Program:
        return abstract_trace(f, args, kwargs, "make_program").program

    return make


@boundary
def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of ``f(*args, **kwargs)``, without computing anything.

    Arguments may be arrays, numbers, or `ShapeDtypeStruct`; the result has their place.

    Examples
    --------
    >>> import funcgrad as fg
    >>> str(fg.eval_shape(lambda x: x.sum(axis=0), fg.ShapeDtypeStruct((3, 4), float)))
    'f64[4]'
    """
    require_callable(f, "eval_shape")
    traced = abstract_trace(f, args, kwargs, "eval_shape")
    return tree.unflatten(traced.out_tree, traced.program.out_avals)


@boundary
def show(f: Callable[..., Any], *args: Any, stage: str = "program", arch: str | None = None, **kwargs: Any) -> str:
    """Print and return the text of a stage of ``f(*args, **kwargs)``. For a gradient pass ``grad(f)``.

    Parameters
    ----------
    stage
        ``"program"``: as traced. ``"simplified"``: one flat Program without repetition. ``"kernels"``: which
        operations share a pass over the data, where buffers are read as ``name[offset; strides]`` unless in C
        order. ``"buffers"``: the memory of each value that is stored, in bytes: that of the caller for inputs and
        results, or a place in the arena, with the kernels that use it first and last, and what lies there at other
        times. ``"llvm"``: the text that is compiled, for this processor. ``"asm"``: the machine code, as assembly.
        ``"numba"``: the kernels as Python loops, a module of its own (see `to_numba`). ``"ptx"``: the kernels of a
        GPU, and ``"cubin"``: a table of the registers and memory that they take; no GPU is needed, but for
        ``"cubin"`` NVIDIA's assembler.
    arch
        The GPU that the last two are for, such as ``"sm_90"``; by default that of the environment variable
        FUNCGRAD_CUDA_ARCH, or ``"sm_80"``.

    Raises
    ------
    ParameterError
        No such stage.
    UnsupportedError
        Stage ``"llvm"``, ``"asm"``, ``"numba"``, ``"ptx"`` or ``"cubin"`` of a Program with an operation that has no
        such form.
    DeviceError
        Stage ``"cubin"`` without an assembler.
    """
    require_callable(f, "show")
    if args and isinstance(args[-1], str) and args[-1] in STAGES:
        raise ArgumentError(
            f"show: {printed(args[-1])} is the name of a stage", hint=f"show(f, x, stage={printed(args[-1])})"
        )
    if not isinstance(stage, str) or stage not in STAGES:
        raise ParameterError(
            f"show: there is no stage {printed(stage)}", hint=f"stages are {', '.join(map(repr, STAGES))}"
        )
    traced = abstract_trace(f, args, kwargs, "show")
    if arch is not None and not (stage in BACKENDS and BACKENDS[stage].for_arch):
        raise ArgumentError(f"show: arch is for the stages of a GPU, not for {stage!r}", hint="stage='ptx'")
    if stage == "numba":
        text = numba_code(f, traced).text
    else:
        text = stage_text(traced.program, stage, arch)
    print(text)
    return text
