"""Planted faults: a mistake in each rule of the operations that hold Programs, in each transform, and in each pass.

A fault changes what the running process does, for good: programs derived wrongly are remembered. So each is planted in
a process of its own (``python -m tests.fuzz --planted NAME``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from funcgrad.control import hoist, loop_reverse, loop_snapshots, rolling
from funcgrad.core.ir import Literal, Stack
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from funcgrad.lowering import bodies, buffers, builder, diagonals, donation, inplace, schedule, simplify, tile, walks
from funcgrad.lowering.registers import control
from funcgrad.ops import elementwise, op
from funcgrad.ops.op import accumulate
from funcgrad.transforms import batch, jvp, mask, prune, split, transpose, zeros

Plant = Callable[[], None]
FAULTS: dict[str, Plant] = {}


def fault(name: str) -> Callable[[Plant], Plant]:
    """A fault by its name."""

    def add(plant: Plant) -> Plant:
        FAULTS[name] = plant
        return plant

    return add


def everywhere(old: Any, new: Any) -> None:
    """Replace a function in every module that imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("funcgrad"):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)


# -- rules of operations that hold Programs, and of those around them


def first_doubled(values: Any) -> tuple[Any, ...]:
    """The first array, or stack of arrays, that is there, twice."""
    found = list(values)
    for i, x in enumerate(found):
        if x is not None and getattr(getattr(x, "dtype", None), "kind", "") == "f":
            found[i] = accumulate(x, x)
            break
    return tuple(found)


def wrong_jvp(rule: Any) -> Any:
    """The first tangent is doubled."""

    def changed(*args: Any, **params: Any) -> Any:
        outs, dots = rule(*args, **params)
        return outs, first_doubled(dots)

    return changed


def wrong_transpose(rule: Any) -> Any:
    """The first cotangent is doubled."""
    return lambda *args, **params: first_doubled(rule(*args, **params))


def wrong_batch(rule: Any) -> Any:
    """The rows of the first result are in the wrong order."""

    def changed(*args: Any, **params: Any) -> Any:
        outs, dims = rule(*args, **params)
        outs = list(outs)
        for i, (x, d) in enumerate(zip(outs, dims, strict=True)):
            if d is not None and not isinstance(getattr(x, "aval", None), Stack) and hasattr(x, "shape"):
                outs[i] = bind1(registry["reverse"], x, axes=(d,))
                break
        return outs, dims

    return changed


def wrong_split(rule: Any) -> Any:
    """The last operand that is unknown is taken for known, if another one is unknown."""

    def changed(e: Any, unknown: Any) -> Any:
        places = [i for i, u in enumerate(unknown) if u]
        if len(places) > 1:
            unknown = tuple([u and i != places[-1] for i, u in enumerate(unknown)])
        return rule(e, unknown)

    return changed


def wrong_links(links: Any) -> Any:
    """What comes back, and what is needed, is forgotten."""
    return lambda params: replace(links(params), carries=(), needed=(), held=(), fixed=False)


WRONG = {
    "jvp": wrong_jvp, "transpose": wrong_transpose, "batch": wrong_batch, "split": wrong_split, "links": wrong_links,
}  # fmt: skip
RULES: dict[str, tuple[str, ...]] = {
    "loop": ("jvp", "transpose", "batch", "split", "links"),
    "branch": ("jvp", "transpose", "batch", "split", "links"),
    "call": ("jvp", "transpose", "batch", "split"),
    "checkpoint": ("jvp", "transpose", "batch", "split"),
    "custom_jvp": ("jvp", "batch", "links"),
    "custom_vjp": ("jvp", "batch", "links"),
    "custom_linear": ("transpose", "batch"),
    "custom_backward": ("jvp", "transpose", "batch"),
    "linear_solve": ("jvp", "transpose", "batch"),
    "callback": ("batch",),
    "barrier": ("jvp", "transpose", "batch"),
    "stack_element": ("jvp", "transpose"),
    "stack_collect": ("jvp", "transpose"),
}


def _plant_rule(name: str, slot: str) -> Plant:
    def plant() -> None:
        p = registry[name]
        setattr(p, slot, WRONG[slot](getattr(p, slot)))

    return plant


FAULTS |= {f"{name}.{slot}": _plant_rule(name, slot) for name, slots in RULES.items() for slot in slots}


@fault("custom_jvp.rule ignored")
def _() -> None:
    registry["custom_jvp"].jvp = lambda primal, primals, tangents, **params: (primal(), (None,) * len(primal()))


@fault("checkpoint.unfold")
def _() -> None:
    p = registry["checkpoint"]
    old: Any = p.unfold
    p.unfold = lambda *args, **params: first_doubled(old(*args, **params))


@fault("loop turned round")
def _() -> None:
    old = loop_reverse._linear
    everywhere(old, lambda *args, **kwargs: _with_params(old(*args, **kwargs)))


def _with_params(e: Any) -> Any:
    return e.replace(params={**e.params, "reverse": not e.params["reverse"]}) if hasattr(e, "params") else e


# -- transforms


@fault("jvp: a term is forgotten")
def _() -> None:
    op.accumulate = lambda x, y: x


@fault("jvp: tangents of equations without any are kept")
def _() -> None:
    old = jvp._jvp
    jvp._jvp = lambda program, nonzero: old(program, (*nonzero[:-1], False) if sum(nonzero) > 1 else nonzero)


@fault("split: residuals in the wrong order")
def _() -> None:
    old = split._split

    def changed(*args: Any) -> Any:
        found = old(*args)
        return replace(found, forwarded=found.forwarded[::-1])

    split._split = changed


@fault("split: the known half is recomputed from nothing")
def _() -> None:
    old = split._split
    split._split = lambda program, unknown, forced: old(program, unknown, (True,) * len(program.outputs))


@fault("transpose: a second cotangent is forgotten")
def _() -> None:
    transpose._sum = lambda t, total, ct, put, replaced: ct


@fault("batch: a shared operand gets its rows elsewhere")
def _() -> None:
    old = elementwise.align

    def changed(x: Any, d: Any, to: int, size: int) -> Any:
        y = old(x, d, to, size)
        return y if d in (None, to) else bind1(registry["reverse"], y, axes=(to,))

    elementwise.align = changed


@fault("batch: onto an axis")
def _() -> None:
    old = batch._batch_onto

    def changed(program: Any, size: int, dims: Any, targets: Any) -> Any:
        found = old(program, size, dims, targets)
        return found if len(found.outputs) < 2 else replace_outputs(found)

    batch._batch_onto = changed


def replace_outputs(program: Any) -> Any:
    """The first two results of one type, exchanged."""
    outs = list(program.outputs)
    for i in range(len(outs) - 1):
        if outs[i].aval == outs[i + 1].aval:
            outs[i], outs[i + 1] = outs[i + 1], outs[i]
            break
    return type(program)(program.inputs, program.equations, tuple(outs), program.name, program.input_names)


@fault("mask: nothing is guarded")
def _() -> None:
    mask._guard = lambda e, flags, marked: e


@fault("prune: dead where it is alive")
def _() -> None:
    old = prune._narrow
    prune._narrow = lambda links, wanted: old(links, (*wanted[:-1], False) if any(wanted[:-1]) else wanted)


@fault("zeros: a sum is zero if one term is")
def _() -> None:
    zeros._annihilated = lambda e, gone: True


# -- passes


@fault("simplify: equal but for parameters")
def _() -> None:
    simplify.static_key = lambda value: 0


@fault("simplify: neutral on either side")
def _() -> None:
    def changed(e: Any, inputs: Any) -> Any:
        for neutral in e.primitive.neutral.values():
            for k, a in enumerate(inputs):
                if isinstance(a, Literal) and a.value == neutral and inputs[1 - k].aval == e.outputs[0].aval:
                    return (inputs[1 - k],)
        return None

    simplify._unchanged = changed


@fault("simplify: guards are dropped")
def _() -> None:
    def changed(e: Any, inputs: Any) -> Any:
        plain = e.primitive.unguarded
        return e if plain is None else type(e)(plain, e.inputs, e.params, e.outputs, e.source)

    simplify._unguarded = changed


@fault("hoist: what a trip changes")
def _() -> None:
    old = hoist.invariants

    def changed(body: Any, fixed: Any) -> Any:
        return old(body, [*fixed, body.inputs[0]])  # the number of the trip

    hoist.invariants = changed


@fault("roll: slices begin one later")
def _() -> None:
    old = rolling.Rolling._number
    rolling.Rolling._number = lambda self, inner, values: old(self, inner, values[::-1])


@fault("roll: escaped values of another step")
def _() -> None:
    old = rolling.Rolling._own
    rolling.Rolling._own = lambda self, inner, atoms: old(self, inner, list(atoms)[::-1])


@fault("snapshots: at the wrong trip")
def _() -> None:
    old = loop_snapshots.initial
    loop_snapshots.initial = lambda n, carry, places: [
        x[::-1] if getattr(x, "ndim", 0) else x for x in old(n, carry, places)
    ]


@fault("schedule: a loop does not wait")
def _() -> None:
    schedule._Scheduler._closed = lambda self, bits: bits


@fault("schedule: a pad of other borders")
def _() -> None:
    old = schedule._frame
    schedule._frame = lambda whole, start, stop: old(whole, start, stop)[1:]


@fault("schedule: axes of a matrix")
def _() -> None:
    old = schedule._Scheduler._matrix
    schedule._Scheduler._matrix = lambda self, x, axes, shape: old(
        self, x, axes[::-1] if shape[1] == shape[2] else axes, shape
    )


@fault("tile: lanes side by side in the wrong order")
def _() -> None:
    old = tile._Tile.folded
    tile._Tile.folded = lambda self, sums: old(self, sums[::-1])


@fault("diagonals: values that differ are the same")
def _() -> None:
    diagonals._same = lambda x, y: True


@fault("diagonals: a diagonal one further")
def _() -> None:
    old = diagonals._Pass._coincidence

    def changed(self: Any, e: Any) -> Any:
        for a in e.inputs[:1]:
            if a in self.index:
                self.index[a] = (self.index[a][0], self.index[a][1] + 1)
        return old(self, e)

    diagonals._Pass._coincidence = changed


@fault("buffers: freed before the last use")
def _() -> None:
    old = buffers.layout

    def changed(s: Any, touched: Any, elsewhere: Any, start: int = 0) -> Any:
        first: dict[Any, int] = {}
        last: dict[Any, int] = {}
        for k, roots in enumerate(touched):
            for r in roots:
                first.setdefault(r, k)
                last[r] = k
        short = [[r for r in roots if first[r] == k or last[r] != k] for k, roots in enumerate(touched)]
        return old(s, short, elsewhere, start)

    everywhere(old, changed)


@fault("inplace: read later")
def _() -> None:
    inplace._fills = lambda source, target: source.size == target.size


@fault("donation: read after it was written")
def _() -> None:
    everywhere(donation.in_place, lambda s, texts, result, argument: True)


@fault("walks: the state is forgotten")
def _() -> None:
    old = walks.WalkEmitter.step

    def changed(self: Any, pointers: Any, states: Any, keep: bool = True) -> Any:
        old(self, pointers, states, keep)
        return states

    walks.WalkEmitter.step = changed


@fault("registers: backwards is forwards")
def _() -> None:
    old = control.Control._repeat if hasattr(control, "Control") else None
    holder = next(c for c in vars(control).values() if isinstance(c, type) and hasattr(c, "_repeat"))
    repeat: Any = old or holder._repeat
    holder._repeat = lambda self, n, start, trip, test, reverse, *rest: repeat(self, n, start, trip, test, False, *rest)


@fault("bodies: the last branch")
def _() -> None:
    old = bodies.BodyKernels._branch

    def changed(self: Any) -> None:
        e = self.e
        self.e = e.replace(params={**e.params, "branches": (*e.params["branches"][1:], e.params["branches"][0])})
        old(self)
        self.e = e

    bodies.BodyKernels._branch = changed


@fault("builder: less is less or equal")
def _() -> None:
    old = builder.Builder.lt
    builder.Builder.lt = lambda self, x, y: old(self, y, x)
