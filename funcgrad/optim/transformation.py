"""Gradient transformations: the parts that optimizers are made of.

A `GradientTransformation` is a pair of pure functions: ``init(params)`` returns a state, and
``update(updates, state, params)`` turns updates (at first the gradient) into new updates, and returns the new state.
Updates have the tree of params; states are pytrees of arrays. So all of it can be jitted and differentiated.

Updates keep the dtype of their leaf: hyperparameters are converted to it, float32 stays float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from funcgrad import numpy as fnp, tree
from funcgrad.base.errors import ArgumentError
from funcgrad.numpy.statistics import safe_sqrt

Params = Any
Updates = Any
State = Any
Scalar = Any
"""A number, or an array of shape ``()``; may be traced and differentiated."""
Schedule = Callable[[Any], Any]
"""From the number of steps taken to a scalar."""


class GradientTransformation(NamedTuple):
    """A pair of pure functions.

    Attributes
    ----------
    init
        ``init(params) -> state``
    update
        ``update(updates, state, params=None) -> (updates, state)``; `params` is needed by transformations that look
        at the parameters, such as weight decay.
    """

    init: Callable[[Params], State]
    update: Callable[..., tuple[Updates, State]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


def like(c: Scalar, x: Any) -> Scalar:
    """A hyperparameter, ready to be combined with a leaf: in its dtype. Python numbers are weak anyway."""
    return c if type(c) in (float, int) else fnp.astype(c, fnp.result_type(x))


def stateless(f: Callable[[Updates, Params], Updates]) -> GradientTransformation:
    """The transformation ``f(updates, params) -> updates``, that remembers nothing."""

    def update(updates: Updates, state: State, params: Params = None) -> tuple[Updates, State]:
        return f(updates, params), state

    return GradientTransformation(lambda params: EmptyState(), update)


def identity() -> GradientTransformation:
    """The transformation that changes nothing."""
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Transformations one after the other: the updates of each go into the next.

    Examples
    --------
    >>> import funcgrad.optim as optim
    >>> clipped = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-3))
    """
    for t in transformations:
        if not isinstance(t, GradientTransformation):
            raise ArgumentError(f"chain takes gradient transformations, got {type(t).__name__}")

    def init(params: Params) -> State:
        return tuple([t.init(params) for t in transformations])

    def update(updates: Updates, state: State, params: Params = None) -> tuple[Updates, State]:
        if len(state) != len(transformations):
            raise ArgumentError(f"chain of {len(transformations)} transformations: the state has {len(state)} parts")
        states = []
        for t, s in zip(transformations, state, strict=True):
            updates, s = t.update(updates, s, params)
            states.append(s)
        return updates, tuple(states)

    return GradientTransformation(init, update)


# -- scaling


def scale(factor: Scalar) -> GradientTransformation:
    """Multiply the updates by `factor`."""
    return stateless(lambda updates, params: tree.map(lambda u: like(factor, u) * u, updates))


class ScaleByScheduleState(NamedTuple):
    """The number of steps taken."""

    count: Any


def scale_by_schedule(schedule: Schedule) -> GradientTransformation:
    """Multiply the updates of step t = 0, 1, 2, … by ``schedule(t)``."""

    def update(
        updates: Updates, state: ScaleByScheduleState, params: Params = None
    ) -> tuple[Updates, ScaleByScheduleState]:
        factor = schedule(state.count)
        return tree.map(lambda u: like(factor, u) * u, updates), ScaleByScheduleState(state.count + 1)

    return GradientTransformation(lambda params: ScaleByScheduleState(np.zeros((), int)), update)


def scale_by_learning_rate(learning_rate: Scalar | Schedule, *, flip_sign: bool = True) -> GradientTransformation:
    """Multiply the updates by -learning_rate: a step downhill.

    Parameters
    ----------
    learning_rate
        A number, or a schedule: a function of the number of steps taken.
    flip_sign
        False: multiply by +learning_rate.
    """
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


# -- momentum and moments


class TraceState(NamedTuple):
    """The decaying sum of past updates."""

    trace: Any


def trace(decay: Scalar, nesterov: bool = False) -> GradientTransformation:
    """Momentum: a decaying sum of the updates, t ← g + decay · t.

    Parameters
    ----------
    decay
        How much of the sum is kept from step to step, in [0, 1).
    nesterov
        Look one step ahead: the new updates are g + decay · t, with the new t.

    References
    ----------
    .. [1] Sutskever, Martens, Dahl & Hinton (2013), On the importance of initialization and momentum in deep learning.
       ICML. Section 2 has both forms, up to a scale of the velocity by the learning rate.
    """

    def update(updates: Updates, state: TraceState, params: Params = None) -> tuple[Updates, TraceState]:
        def add(g: Any, t: Any) -> Any:
            return g + like(decay, g) * t

        new = tree.map(add, updates, state.trace)
        return (tree.map(add, updates, new) if nesterov else new), TraceState(new)

    return GradientTransformation(lambda params: TraceState(tree.map(fnp.zeros_like, params)), update)


class ScaleByAdamState(NamedTuple):
    """The number of steps taken, and decaying means of the gradient and of its square."""

    count: Any
    mu: Any
    nu: Any


def scale_by_adam(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8, eps_root: Scalar = 0.0
) -> GradientTransformation:
    """Divide a decaying mean of the gradient by the root of that of its square.

    In step t = 1, 2, …, elementwise::

        mu ← b1 mu + (1 - b1) g
        nu ← b2 nu + (1 - b2) g²
        update = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t) + eps_root) + eps)

    The divisions by 1 - b^t undo the bias towards the zeros that mu and nu start from. In the first step the update is
    g / (|g| + eps): about the sign of the gradient.

    Parameters
    ----------
    b1, b2
        Decay rates of the two means, in [0, 1).
    eps
        Added to the denominator.
    eps_root
        Added under the root.

    Notes
    -----
    The derivative with respect to a gradient that is exactly 0 is right too: 1 / eps in the first step.

    References
    ----------
    .. [1] Kingma & Ba (2015), Adam: a method for stochastic optimization. ICLR. Algorithm 1.
    """

    def init(params: Params) -> ScaleByAdamState:
        mu, nu = tree.map(fnp.zeros_like, params), tree.map(fnp.zeros_like, params)
        return ScaleByAdamState(np.zeros((), int), mu, nu)

    def update(updates: Updates, state: ScaleByAdamState, params: Params = None) -> tuple[Updates, ScaleByAdamState]:
        count = state.count + 1
        mu = tree.map(lambda g, m: like(b1, g) * m + like(1 - b1, g) * g, updates, state.mu)
        nu = tree.map(lambda g, v: like(b2, g) * v + like(1 - b2, g) * _abs2(g), updates, state.nu)
        correct1, correct2 = 1 - b1**count, 1 - b2**count

        def scaled(m: Any, v: Any) -> Any:
            root = safe_sqrt(v / like(correct2, v) + like(eps_root, v))
            return fnp.divide(m / like(correct1, m), root + like(eps, v))

        return tree.map(scaled, mu, nu), ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def _abs2(x: Any) -> Any:
    return fnp.real(x * fnp.conj(x)) if fnp.iscomplexobj(x) else fnp.square(x)


# -- weight decay


def add_decayed_weights(weight_decay: Scalar, mask: Any = None) -> GradientTransformation:
    """Add weight_decay · params to the updates.

    Parameters
    ----------
    mask
        Which leaves decay: a pytree of bools that is a prefix of params, or a function from params to one. Default:
        all of them.

    References
    ----------
    .. [1] Krogh & Hertz (1992), A simple weight decay can improve generalization. NeurIPS.
    """

    def add(updates: Updates, params: Params) -> Updates:
        if params is None:
            raise ArgumentError("add_decayed_weights: update needs the parameters", hint="update(grads, state, params)")
        chosen = True if mask is None else mask(params) if callable(mask) else mask
        flags = tree.broadcast(chosen, updates)
        return tree.map(lambda u, p, m: u + like(weight_decay, u) * p if m else u, updates, params, flags)

    return stateless(add)


# -- clipping


def clip(max_delta: Scalar) -> GradientTransformation:
    """Hold every element of the updates between -max_delta and max_delta."""

    def clipped(u: Any) -> Any:
        limit = like(max_delta, u)
        return fnp.clip(u, -limit, limit)

    return stateless(lambda updates, params: tree.map(clipped, updates))


def clip_by_global_norm(max_norm: Scalar) -> GradientTransformation:
    """Scale the updates down, all by the same factor, so that their global norm is at most `max_norm`.

    References
    ----------
    .. [1] Pascanu, Mikolov & Bengio (2013), On the difficulty of training recurrent neural networks. ICML. Section 3.2.
    """

    def clipped(updates: Updates, params: Params) -> Updates:
        norm = global_norm(updates)
        factor = fnp.where(norm <= max_norm, 1.0, fnp.divide(max_norm, norm))
        return tree.map(lambda u: like(factor, u) * u, updates)

    return stateless(clipped)


# -- on trees


def global_norm(updates: Any) -> Any:
    """The Euclidean norm of all elements of all leaves together; its derivative is 0 where it is 0.

    Examples
    --------
    >>> float(global_norm({"w": [3.0, 0.0], "b": 4.0}))
    5.0
    """
    squares = [fnp.sum(_abs2(u)) for u in tree.leaves(updates)]
    return safe_sqrt(fnp.asarray(tree.reduce(fnp.add, squares, 0.0)))


def apply_updates(params: Params, updates: Updates) -> Params:
    """params + updates, in the dtypes of the parameters; None in place of a leaf's update leaves it as it is.

    Examples
    --------
    >>> {k: float(v) for k, v in apply_updates({"w": 1.0, "b": 2.0}, {"w": 0.5, "b": -2.0}).items()}
    {'w': 1.5, 'b': 0.0}
    """

    def add(p: Any, u: Any) -> Any:
        return p if u is None else fnp.astype(fnp.add(p, u), fnp.result_type(p))

    return tree.map(add, params, updates)
