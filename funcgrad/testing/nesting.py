"""Ways to put a function inside a transform, a loop, a branch or a rule: what random programs are nested with.

Each takes a function, which returns a tuple, and its arguments, and returns a tuple. The functions of this module are
never called as they stand here: their text becomes a part of the program that uses them, where `np`, `fg` and `lax`
are NumPy, funcgrad and `funcgrad.lax`, or what an oracle puts in their place.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

np: Any = None
fg: Any = None
lax: Any = None
bind1: Any = None
registry: Any = None


# -- what they share


def bend(x):
    """x / (1 + x²): between -1/2 and 1/2, and smooth."""
    return x / (1 + x * x)


def fit(x, low, high):
    """x bent into an interval."""
    return bend(x) * (high - low) + (high + low) / 2


def bent(ys):
    return tuple([bend(y) for y in ys])


def bind(name, *args, **params):
    """A primitive that has no public name."""
    return bind1(registry[name], *args, **params)


def direction(x):
    """Some numbers like x."""
    return np.cos(1.0 + np.arange(x.size)).reshape(x.shape).astype(x.dtype)


def weighted(ys):
    """A number that depends on everything, and whose derivatives do."""
    return sum([np.sum(y * (direction(y) + y / 4)) for y in ys if y.dtype.kind == "f"])


def moved(xs, factor, shift):
    """Other arguments of the same types."""
    return [(x * factor + shift).astype(x.dtype) if x.dtype.kind == "f" else x for x in xs]


def shares(y):
    """How much each row counts: 1, 2, 3 ... parts of one."""
    parts = np.arange(1.0, y.shape[0] + 1)
    return (parts / np.sum(parts)).reshape((-1,) + (1,) * (y.ndim - 1)).astype(y.dtype)


def averaged(ys):
    """Of rows: a mean that tells them apart, or the last one if they are no floats."""
    return tuple([np.sum(y * shares(y), axis=0) if y.dtype.kind == "f" else y[-1] for y in ys])


def of_floats(f, args):
    """A function of those arguments that have derivatives, with the results that have, and these arguments."""
    places = [i for i, x in enumerate(args) if x.dtype.kind == "f"]

    def g(*xs):
        full = list(args)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        return tuple([y for y in f(*full) if y.dtype.kind == "f"])

    return g, [args[i] for i in places]


def contracted(jacobian, xs):
    """Derivatives of one result by all arguments, along a direction."""
    return sum([np.tensordot(J, direction(x), x.ndim) for J, x in zip(jacobian, xs, strict=True)])


def from_python(x):
    """A callback with a rule of its own."""
    f = fg.custom_jvp(lambda x: fg.pure_callback(np.sin, fg.ShapeDtypeStruct(x.shape, x.dtype), x))
    f.defjvp(lambda x, x_dot: (f(*x), np.cos(x[0]) * x_dot[0]))
    return f(x)


def heard(x):
    """x, which Python hears of."""
    fg.debug.callback(lambda x: None, x)
    return x


def again(x):
    """x, as the backward pass of a checkpoint holds it."""
    return fg.grad(fg.checkpoint(lambda s: np.sum(s * x)))(np.ones_like(x))


def solved(a, b):
    """The solution of a linear system, by a solver that is given, which improves what it finds."""

    def solver(a):
        inverse = lambda b: np.linalg.solve(a, b)
        return lambda matvec, b: inverse(b) + inverse(b - matvec(inverse(b)))

    return fg.custom_linear_solve(lambda x: a @ again(x), b, solver(a), solver(a.T))


# -- transforms


def in_jit(f, *args):
    return tuple(fg.jit(f)(*args))


def in_jvp(f, *args):
    g, xs = of_floats(f, args)
    return bent(fg.jvp(g, tuple(xs), tuple([direction(x) for x in xs]))[1])


def in_jvp_of_one(f, *args):
    """Along the last argument only."""
    g, xs = of_floats(f, args)
    last = lambda x: g(*xs[:-1], x)
    return bent(fg.jvp(last, (xs[-1],), (direction(xs[-1]),))[1])


def in_linearize(f, *args):
    g, xs = of_floats(f, args)
    return bent(fg.linearize(g, *xs)[1](*[direction(x) for x in xs]))


def in_vjp(f, *args):
    g, xs = of_floats(f, args)
    ys, back = fg.vjp(g, *xs)
    return bent(back(tuple([direction(y) for y in ys])))


def in_grad(f, *args):
    g, xs = of_floats(f, args)
    return bent(fg.grad(lambda *xs: weighted(g(*xs)), tuple(range(len(xs))))(*xs))


def in_jacfwd(f, *args):
    g, xs = of_floats(f, args)
    return bent([contracted(row, xs) for row in fg.jacfwd(g, tuple(range(len(xs))))(*xs)])


def in_jacrev(f, *args):
    g, xs = of_floats(f, args)
    return bent([contracted(row, xs) for row in fg.jacrev(g, tuple(range(len(xs))))(*xs)])


def in_hessian(f, *args):
    g, xs = of_floats(f, args)
    rows = fg.hessian(lambda *xs: weighted(g(*xs)), tuple(range(len(xs))))(*xs)
    return bent([contracted(row, xs) for row in rows])


def in_vmap(f, *args):
    axes = tuple([-1 if x.ndim % 2 else 0 for x in args])
    rows = [moved(args, s, t) for s, t in ((0.8, 0.1), (0.5, -0.2), (-0.7, 0.3))]
    return averaged(fg.vmap(f, axes)(*[np.stack(r, a) for r, a in zip(zip(*rows, strict=True), axes, strict=True)]))


def in_vmap_of_some(f, *args):
    """Rows of the last argument only."""
    rows = [moved(args[-1:], s, t)[0] for s, t in ((0.8, 0.1), (0.5, -0.2))]
    axes = (None,) * (len(args) - 1) + (0,)
    return averaged(fg.vmap(f, axes)(*args[:-1], np.stack(rows)))


def in_checkpoint(f, *args):
    return tuple(fg.checkpoint(f)(*args))


def in_checkpoint_of_dots(f, *args):
    return tuple(fg.checkpoint(f, policy=fg.checkpoint_policies.dots_saveable)(*args))


# -- rules


def with_jvp_rule(f, *args):
    g = fg.custom_jvp(f)
    g.defjvp(lambda x, x_dot: fg.jvp(f, x, x_dot))
    return tuple(g(*args))


def with_vjp_rule(f, *args):
    g, xs = of_floats(f, args)
    h = fg.custom_vjp(g)
    h.defvjp(lambda *x: (g(*x), x), lambda x, ct: fg.vjp(g, *x)[1](ct))
    return tuple(h(*xs))


def minus(xs, ys):
    return tuple([x - y for x, y in zip(xs, ys, strict=True)])


def inverse(matvec, uv):
    """The solution of a system whose matrix is 1 + N with N N = 0: the inverse is 1 - N."""
    return tuple([minus([2 * x for x in xs], ys) for xs, ys in zip(uv, matvec(uv), strict=True)])


def as_root(f, *args):
    """The solution of the equations u = args, v = f(u)."""
    g, xs = of_floats(f, args)
    equations = lambda uv, *xs: (minus(uv[0], xs), minus(uv[1], g(*uv[0])))
    return fg.implicit.root(equations, lambda *xs: (xs, g(*xs)), inverse)(*xs)[1]


def in_system(f, *args):
    """The solution of the linear system u = f(args), v - u f'(args) = args."""
    g, xs = of_floats(f, args)
    ys, back = fg.vjp(g, *xs)
    matvec = lambda uv: (uv[0], minus(uv[1], back(uv[0])))
    return bent(fg.custom_linear_solve(matvec, (tuple(ys), tuple(xs)), inverse, inverse)[1])


# -- loops and branches


def in_scan(f, *args):
    def trip(carry, x):
        ys = f(*moved(args, x, carry))
        return bend(carry + weighted(ys)), ys

    carry, ys = lax.scan(trip, np.float64(0.3), np.array([0.75, -0.5, 0.25]))
    return (*averaged(ys), carry)


def in_scan_backwards(f, *args):
    """The arguments are carried."""

    def trip(carry, x):
        ys = f(*carry)
        return tuple(moved(carry, x, bend(weighted(ys)))), ys

    carry, ys = lax.scan(trip, tuple(args), np.array([0.75, -0.5]), reverse=True)
    return (*averaged(ys), *carry)


def in_scan_of_blocks(f, *args):
    """Reverse mode computes most carries again."""

    def trip(carry, x):
        ys = f(*carry)
        return tuple(moved(carry, x, bend(weighted(ys)))), ys

    carry, ys = lax.scan(trip, tuple(args), np.array([0.75, -0.5, 0.25, 0.6, -0.7]), checkpoint=2)
    return (*averaged(ys), *carry)


def in_while(f, *args):
    def trip(state):
        i, carry, ys = state
        return i + 1, bend(carry + weighted(ys)), f(*moved(args, 0.7, carry))

    start = (np.int64(0), np.float64(0.3), f(*args))
    _, carry, ys = lax.while_loop(lambda state: (state[0] < 3) & (state[1] < 0.45), trip, start)
    return (*ys, carry)


def in_fori(f, *args):
    """As many trips as an argument says."""
    trips = 1 + (np.sum(args[0]) > 0.3).astype(np.int64)
    trip = lambda i, xs: tuple(moved(xs, 0.7, bend(weighted(f(*xs)) + 0.1 * i)))
    return tuple(lax.fori_loop(0, trips, trip, tuple(args)))


def in_cond(f, *args):
    other = lambda *args: tuple([bend(y) if y.dtype.kind == "f" else y for y in f(*moved(args, 0.5, 0.2))])
    return tuple(lax.cond(np.sum(args[0]) > 0.2, f, other, *args))


def in_switch(f, *args):
    """One branch is without the function."""
    level = bend(np.sum(args[0]))
    first = lambda *args: tuple([(np.zeros(y.shape) + level).astype(y.dtype) for y in fg.eval_shape(f, *args)])
    last = lambda *args: tuple([bend(y) if y.dtype.kind == "f" else y for y in f(*args)])
    index = (np.sum(args[0]) > 0.4).astype(np.int64) + (np.sum(args[0]) > -0.4)
    return tuple(lax.switch(index, [first, f, last], *args))


def in_rounds(f, *args):
    """A Python loop, which `jit` may roll up: of numbers, carries, and windows that move."""
    carry = 0.3
    track = bend(np.arange(8.0) + np.sum(args[0]))
    for k, factor in enumerate((0.75, -0.5, 0.25, 0.7, -0.6, 0.4)):
        ys = f(*moved(args, factor, carry))
        carry = bend(carry + weighted(ys) + weighted([track[k : k + 3]]))
    return (*ys, carry + 0.0)


# -- what the generator knows of them


@dataclass(frozen=True)
class Wrapper:
    """A way to nest.

    Attributes
    ----------
    column
        What it counts as.
    mode
        ``"forward"`` or ``"reverse"``: how it differentiates the function, first.
    times
        How often the function appears in the Program of the whole.
    order
        Of the derivative.
    basis
        Whether it differentiates along every element.
    implicit
        Whether its derivative solves a linear system, whose matrix is applied once, and in reverse mode only, if the
        function has nothing but a backward rule.
    """

    column: str
    mode: str = ""
    times: int = 1
    order: int = 0
    basis: bool = False
    implicit: bool = False


WRAPPERS: dict[str, Wrapper] = {
    "in_jit": Wrapper("jit"),
    "in_vmap": Wrapper("vmap"),
    "in_grad": Wrapper("vjp", "reverse", 2, 1),
    "in_jvp": Wrapper("jvp", "forward", 2, 1),
    "in_scan": Wrapper("scan"),
    "in_cond": Wrapper("cond", times=2),
    "in_while": Wrapper("while", times=2),
    "in_checkpoint": Wrapper("checkpoint"),
    "with_jvp_rule": Wrapper("custom_jvp", "forward"),
    "with_vjp_rule": Wrapper("custom_vjp"),
    "in_vjp": Wrapper("vjp", "reverse", 2, 1),
    "in_linearize": Wrapper("jvp", "forward", 2, 1),
    "in_jvp_of_one": Wrapper("jvp", "forward", 2, 1),
    "in_jacfwd": Wrapper("jvp", "forward", 2, 1, True),
    "in_jacrev": Wrapper("vjp", "reverse", 2, 1, True),
    "in_hessian": Wrapper("vjp", "reverse", 4, 2, True),
    "in_vmap_of_some": Wrapper("vmap"),
    "in_checkpoint_of_dots": Wrapper("checkpoint"),
    "in_scan_backwards": Wrapper("scan"),
    "in_scan_of_blocks": Wrapper("scan"),
    "in_fori": Wrapper("while"),
    "in_switch": Wrapper("cond", times=2),
    "in_rounds": Wrapper("", times=6),
    "as_root": Wrapper("", times=2, implicit=True),
    "in_system": Wrapper("vjp", "reverse", 3, 1),
}

HELPERS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        bend, fit, bent, bind, direction, weighted, moved, shares, averaged, of_floats, contracted, from_python, heard,
        again, solved, minus, inverse,
        *[globals()[name] for name in WRAPPERS],
    )
}  # fmt: skip


def helpers_of(text: str) -> str:
    """The text of all functions of this module that a program uses, itself or through others."""
    wanted: list[str] = []
    texts = [text]
    while texts:
        names = set(re.findall(r"\b[a-z_]+\b", texts.pop())) & HELPERS.keys() - set(wanted)
        wanted.extend(sorted(names))
        texts.extend([inspect.getsource(HELPERS[name]) for name in sorted(names)])
    return "\n\n".join([inspect.getsource(f) for name, f in HELPERS.items() if name in wanted])
