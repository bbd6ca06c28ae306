"""Kernels that are no loops of ours: matrix products by ``np.dot``, and calls of whole-array helpers.

`LIBRARY` says for each primitive how its equation is written as a whole. Operands are C-contiguous arrays; axes are
brought to a fixed number first, so that a helper is written once: ``(before, along, after)`` for operations along an
axis, ``(places, rest)`` for scatters.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from funcgrad.core.ir import Equation, Literal, Shape, Var, make_aval
from funcgrad.lowering.kernels import Product
from funcgrad.lowering.layout import View, row_major
from funcgrad.lowering.numba_source.spelling import formless, literal
from funcgrad.lowering.numba_source.writer import Block, Writer

# -- matrix products


def product(w: Writer, k: Product) -> Block:
    """A product, or a batch of them."""
    block = w.block = Block()
    out = k.out.root
    w.made.add(out)
    e = w.equation_of(out)
    left, right = w.resolved(k.x), w.resolved(k.y)
    (b, m, depth), n = left.shape, right.shape[2]
    name, shape = w.names.of(out), out.aval.shape
    if 0 in (b, m, n, depth):
        w.say(0, f"{name} = {w.new_array('zeros', shape, k.dtype) if shape else '0.0'}", e)
    elif b == 1:
        x, y = _matrix(w, left, m == 1), _matrix(w, right, n == 1)
        have = tuple([s for s in (m if m > 1 else 0, n if n > 1 else 0) if s])
        text = f"np.dot({x}, {y})"
        if have != shape:
            text = f"{text}.reshape({w.shape_text(shape)})" if have else w.new_array("full", shape, k.dtype, text)
        w.say(0, f"{name} = {text}", e)
    else:
        w.made.discard(out)
        w.allocate(out)
        x, y = _batch(w, left), _batch(w, right)
        i = w.names.indices[0]
        w.say(0, f"for {i} in range({b}):", e)
        whole = w.alias(out, (b, m, n), f"{name}_matrices")
        w.say(1, f"np.dot({x.format(i)}, {y.format(i)}, {whole}[{i}])")
    return block


def _matrix(w: Writer, view: View, vector: bool) -> str:
    """A matrix (or, if it has but one row or column, a vector) as ``np.dot`` takes it without copying."""
    _, rows, columns = view.shape
    plain = View(view.root, view.shape[1:], view.offset, view.strides[1:])
    if vector:
        length = rows * columns
        step = plain.strides[0 if rows > 1 else 1]
        line = View(view.root, (length,), view.offset, (step if length > 1 else 0,))
        return w.reshape_text(w.whole(line), (length,))
    turned = plain.permuted((1, 0))
    if _is_whole(turned) and not _is_whole(plain):
        return f"{w.reshape_text(view.root, (columns, rows))}.T"
    return w.reshape_text(w.whole(_normal(plain)), (rows, columns))


def _batch(w: Writer, view: View) -> str:
    """One matrix of a batch, with ``{}`` for its number."""
    turned = view.permuted((0, 2, 1))
    flip = _is_whole(turned) and not _is_whole(view)
    use = turned if flip else view
    root = w.whole(_normal(use))
    return f"{w.alias(root, use.shape, f'{w.names.of(root)}_matrices')}[{{}}]{'.T' if flip else ''}"


def _normal(view: View) -> View:
    return View(view.root, view.shape, view.offset, tuple(
        [s if n > 1 else 0 for n, s in zip(view.shape, view.strides, strict=True)]
    ))  # fmt: skip


def _is_whole(view: View) -> bool:
    return (
        view.offset == 0 and prod(view.shape) == view.root.aval.size and _normal(view).strides == row_major(view.shape)
    )


# -- whole equations


def library(w: Writer, e: Equation) -> Block:
    """One equation as a call of a helper."""
    form = (STACKS if e.primitive.traits.kind.startswith("stack") else LIBRARY).get(e.primitive.name)
    if form is None:
        raise formless(e)
    block = w.block = Block()
    text, shape = form(w, e)
    (out,) = e.outputs
    w.made.add(out)
    if out.aval.shape == () != shape:
        text = f"{text}[{', '.join('0' * len(shape))}]"
    elif out.aval.shape != shape and out not in w.in_place:
        text = f"{text}.reshape({w.shape_text(out.aval.shape)})"
    name = w.names.of(out)
    if text != name:
        w.say(0, text if out in w.in_place else f"{name} = {text}", e)
    return block


def _changed(w: Writer, e: Equation, shape: Shape) -> str:
    """The array that an update changes, in this shape: that of its operand, or a copy."""
    x = e.inputs[0]
    own = e.outputs[0] in w.in_place or isinstance(x, Literal)
    return w.array(x, shape) + ("" if own else ".copy()")


Form = Callable[[Writer, Equation], tuple[str, Shape]]


def _along(w: Writer, e: Equation) -> tuple[str, Shape]:
    """An operation along one axis: the shape (before, along, after)."""
    shape, axis = e.inputs[0].aval.shape, e.params["axis"]
    three = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    operands = [w.array(a, three) for a in e.inputs]
    options = [str(e.params["reverse"])] if "reverse" in e.params else []
    kept = three if options else (three[0], three[2])
    return f"{e.primitive.name}({', '.join([*operands, *options])})", kept


def _scatter(w: Writer, e: Equation) -> tuple[str, Shape]:
    x, updates, *indices = e.inputs
    k, m = len(indices), indices[0].aval.size
    lengths, rest = x.aval.shape[:k], prod(x.aval.shape[k:])
    at = w.new_array("zeros", (m,), indices[0].aval.dtype)
    for i, n in zip(indices, lengths, strict=True):
        at = f"places({at}, {w.array(i, (m,))}, {n}, {e.params['mode'] == 'drop'})"
    positions = w.names.fresh("at")
    w.say(0, f"{positions} = {at}")
    two = (prod(lengths), rest)
    name = e.primitive.name
    if x.aval.dtype.kind == "b" and name in ("scatter_add", "scatter_mul"):
        name += "_bool"
    return f"{name}({_changed(w, e, two)}, {w.array(updates, (m, rest))}, {positions})", two


def _order(w: Writer, e: Equation) -> tuple[str, Shape]:
    shape = e.inputs[0].aval.shape
    two = (prod(shape[:-1]), shape[-1])
    return f"stable_order({w.array(e.inputs[0], two)})", two


def _dynamic_update_slice(w: Writer, e: Equation) -> tuple[str, Shape]:
    x, update, *starts = e.inputs
    shape = x.aval.shape
    if not shape:
        return w.array(update, ()), ()
    index, rest = [], []
    for n, k, a in zip(shape, update.aval.shape, starts, strict=True):
        start = w.start(a, n, k)
        stop = str(int(start) + k) if start.isdigit() else f"{start} + {k}"
        index.append(":" if k == n else start if k == 1 else f"{start}:{stop}")
        rest += [k] if k == n or k != 1 else []
    name, text = w.names.of(e.outputs[0]), _changed(w, e, shape)
    value = literal(update) if isinstance(update, Literal) else w.array(update, tuple(rest))
    if text != name:
        w.say(0, f"{name} = {text}", e)
    w.say(0, f"{name}[{', '.join(index)}] = {value}", e)
    return name, shape


def _dot(w: Writer, e: Equation) -> tuple[str, Shape]:
    """Products that are no matter of BLAS: of integers, and of bool."""
    contract, batch = e.params["contract"], e.params["batch"]
    free = [
        tuple([i for i in range(v.aval.ndim) if i not in c and i not in b])
        for v, c, b in zip(e.inputs, contract, batch, strict=True)
    ]
    x, y = e.inputs
    size = lambda v, axes: prod([v.aval.shape[i] for i in axes])
    b, m, k, n = size(x, batch[0]), size(x, free[0]), size(x, contract[0]), size(y, free[1])
    left = _ordered(w, x, (*batch[0], *free[0], *contract[0]), (b, m, k))
    right = _ordered(w, y, (*batch[1], *contract[1], *free[1]), (b, k, n))
    name = "products_bool" if x.aval.dtype.kind == "b" else "products"
    return f"{name}({left}, {right})", (b, m, n)


def _ordered(w: Writer, x: Var | Literal, axes: tuple[int, ...], shape: Shape) -> str:
    if isinstance(x, Literal):
        return w.array(x, shape)
    moved = Var(make_aval(tuple([x.aval.shape[a] for a in axes]), x.aval.dtype))
    w.views[moved] = w.views[x].permuted(axes)
    return w.array(moved, shape)


def _stack_length(w: Writer, e: Equation) -> tuple[str, Shape]:
    return f"len({w.names.of(e.inputs[0])})", ()


def _stack_empty(w: Writer, e: Equation) -> tuple[str, Shape]:
    return w.zero(e.outputs[0].aval), e.outputs[0].aval.shape


STACKS: dict[str, Form] = {"stack_length": _stack_length, "stack_empty": _stack_empty}
LIBRARY: dict[str, Form] = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "linear_recurrence", "argmax", "argmin"), _along),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"), _scatter),
    "stable_order": _order,
    "dynamic_update_slice": _dynamic_update_slice,
    "dot": _dot,
}
