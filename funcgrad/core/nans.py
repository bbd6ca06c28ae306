"""Finding the operation that made a NaN, while `debug_nans` is on.

What was evaluated last is kept. When a result turns out to hold a NaN, the Program that computed it is run again, one
equation at a time, and followed from the NaN backwards: to the equation whose operands have none, into the Programs
that it holds, and from an input to the evaluation before that made it. Effects are not repeated: their results were
kept too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from funcgrad.base.errors import NanError
from funcgrad.core.array import config
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Atom, Equation, Literal, Program, Var
from funcgrad.core.modes import Mode
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly

KEPT = 8


class debug_nans(Mode):  # noqa: N801 (reads as a statement)
    """``with debug_nans():`` a result that contains NaN raises `NanError`, which names the operation and your line.

    The results of derivatives, of `vmap`, of jitted functions and of loops are searched; to find the operation they
    are computed again, one operation at a time. ``config.debug_nans = True`` does the same everywhere.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> with fg.debug_nans():
    ...     fg.jit(lambda x: 1 + np.log(x))(-1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    funcgrad.base.errors.NanError: log: the result is NaN for -1.0
      at ...
    """

    _variable = ContextVar("funcgrad_debug_nans", default=None)
    __slots__ = ()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        _KEPT.done = None


def nans_searched() -> bool:
    """Whether results are searched for NaN."""
    on = debug_nans._variable.get()
    return config.debug_nans if on is None else on


@dataclass(slots=True, eq=False)
class _Run:
    """An evaluation in progress: what effects gave, recorded or read again, and whether a NaN in a body raises."""

    tape: list[Any] = field(default_factory=list)
    at: int | None = None  # where the tape is read; None while it is recorded
    locating: bool = False


@dataclass(slots=True, eq=False)
class _Done:
    """An evaluation that is over."""

    program: Program
    args: list[Any]
    known: Mapping[Var, Any]
    outputs: list[Any]
    tape: list[Any]


_RUN: ContextVar[_Run | None] = ContextVar("funcgrad_nan_run", default=None)


class _Kept(threading.local):
    """The last evaluations of a thread. They are needed by later calls, so they are no context variable."""

    done: deque[_Done] | None = None


_KEPT = _Kept()


def watched(
    program: Program, args: Sequence[Any], known: Mapping[Var, Any], compute: Callable[[], list[Any]]
) -> list[Any]:
    """What `compute` gives for `program`, kept for `search`."""
    running = _RUN.get()
    if running is not None:
        start = running.at
        outputs = compute()
        if running.locating:
            for k, value in enumerate(outputs):
                if has_nan(value):
                    running.at = start
                    _follow(program, args, known, running, k)
        return outputs
    own = _Run()
    token = _RUN.set(own)
    try:
        outputs = compute()
    finally:
        _RUN.reset(token)
    if _KEPT.done is None:
        _KEPT.done = deque(maxlen=KEPT)
    _KEPT.done.append(_Done(program, list(args), known, outputs, own.tape))
    return outputs


def once(call: Callable[[], Any], effect: bool) -> Any:
    """The result of calling back user code; when an evaluation is repeated an effect is not."""
    running = _RUN.get()
    if running is None:
        return call()
    if effect and running.at is not None:
        running.at += 1
        return running.tape[running.at - 1]
    token = _RUN.set(None)
    try:
        result = call()
    finally:
        _RUN.reset(token)
    if effect:
        running.tape.append(result)
    return result


def has_nan(x: Any) -> bool:
    """Whether an array, scalar or stack holds a NaN."""
    data = x.data if isinstance(x, Stacked) else _here(x)
    return data.dtype.kind in "fc" and bool(np.isnan(data).any())


def _here(x: Any) -> Any:
    """A value in ordinary memory."""
    return x.to_host() if type(x) is DeviceArray else x


def search(values: Sequence[Any]) -> None:
    """Raise `NanError` if one of these results, of the last evaluations, holds a NaN."""
    bad = [v for v in values if has_nan(v)]
    if bad:
        _trace_back(bad[0], list(_KEPT.done or ()))
        raise NanError("a result is NaN, and it was not an operation of funcgrad that made it")


def _trace_back(value: Any, done: list[_Done]) -> None:
    """Follow a NaN through the evaluations that are over, the last one first."""
    for i in reversed(range(len(done))):
        d = done[i]
        k = _place(value, d.outputs)
        if k is None:
            continue
        token = _RUN.set(_Run(d.tape, 0))
        try:
            with eagerly():
                n = _follow(d.program, d.args, d.known, _RUN.get(), k)
        finally:
            _RUN.reset(token)
        if n is not None:
            _trace_back(d.args[n], done[:i])
            name = d.program.input_names[n] if d.program.input_names else ""
            raise NanError(f"{d.program.name}: {name or f'input {n}'} is NaN already")
        return


def _place(value: Any, outputs: list[Any]) -> int | None:
    """Which of `outputs` is `value`, or what it is a view of."""
    base = value.base if isinstance(value, np.ndarray) else None
    for k, out in enumerate(outputs):
        if out is value or (base is not None and (out is base or getattr(out, "base", None) is base) and has_nan(out)):
            return k
    return None


def _follow(program: Program, args: Sequence[Any], known: Mapping[Var, Any], running: Any, output: int) -> int | None:
    """Raise for the equation that made the NaN in an output; the position of an input if it comes from there."""
    values: dict[Any, Any] = dict(zip(program.inputs, map(_here, args), strict=True))
    made: dict[Any, tuple[Equation, int]] = {}
    running.locating = False

    def read(a: Atom) -> Any:
        return a.array if isinstance(a, Literal) else values[a]

    for e in program.equations:
        made.update(dict.fromkeys(e.outputs, (e, running.at)))
        if e.outputs and e.outputs[0] in known:
            results: Any = [known[v] for v in e.outputs]
        else:
            results = (e.primitive.interpret or e.primitive.evaluate)(*[read(a) for a in e.inputs], **e.params)
        values.update(zip(e.outputs, results, strict=True))
    atom = program.outputs[output]
    while atom in made:
        e, start = made[atom]
        bad = [a for a in e.inputs if has_nan(read(a))]
        if not bad:
            running.at, running.locating = start, True
            operands = [read(a) for a in e.inputs]
            if e.primitive.links is not None:
                (e.primitive.interpret or e.primitive.evaluate)(*operands, **e.params)
            raise NanError(_message(e, operands, values[atom])).at(e.source)
        atom = bad[0]
    return program.inputs.index(atom) if isinstance(atom, Var) else None


def _message(e: Equation, operands: list[Any], result: Any) -> str:
    """What is NaN, for which values."""
    called = e.params.get("callee")
    name = e.primitive.name if called is None else f"{e.primitive.name} {called}"
    if isinstance(result, Stacked) or not result.ndim:
        shown = [str(x) for x in operands if not isinstance(x, Stacked) and not x.ndim]
        return f"{name}: the result is NaN" + (
            f" for {', '.join(shown)}" if len(shown) == len(operands) and shown else ""
        )
    at = tuple([int(i) for i in np.argwhere(np.isnan(result))[0]])
    shown = [str(x[at]) for x in operands if not isinstance(x, Stacked) and x.shape == result.shape]
    where = f"element {at if len(at) > 1 else at[0]} of the result {list(result.shape)} is NaN"
    return f"{name}: {where}" + (f" for {', '.join(shown)}" if len(shown) == len(operands) else "")
