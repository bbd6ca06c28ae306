"""Optimizers: chains of gradient transformations that end in a step downhill."""

from __future__ import annotations

from typing import Any

from funcgrad.optim.transformation import (
    GradientTransformation,
    Scalar,
    Schedule,
    add_decayed_weights,
    chain,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)


def sgd(
    learning_rate: Scalar | Schedule, momentum: Scalar | None = None, nesterov: bool = False
) -> GradientTransformation:
    """Gradient descent, plain or with momentum.

    Plain: params ← params - learning_rate · g. With momentum, g is replaced by t ← g + momentum · t, or by
    g + momentum · t (with the new t) if `nesterov`.

    Parameters
    ----------
    learning_rate
        A number, or a schedule.
    momentum
        Decay rate of the sum of past gradients, in [0, 1). None: no momentum, and no memory for it.
    nesterov
        Nesterov's form of momentum.

    References
    ----------
    .. [1] Sutskever, Martens, Dahl & Hinton (2013), On the importance of initialization and momentum in deep learning.
       ICML.

    Examples
    --------
    >>> import funcgrad as fg
    >>> optimizer = fg.optim.sgd(0.25)
    >>> x = 3.0
    >>> state = optimizer.init(x)
    >>> for _ in range(10):
    ...     updates, state = optimizer.update(fg.grad(lambda x: x * x)(x), state, x)
    ...     x = fg.optim.apply_updates(x, updates)
    >>> float(x) == 3.0 / 2**10
    True
    """
    step = scale_by_learning_rate(learning_rate)
    return step if momentum is None else chain(trace(momentum, nesterov), step)


def adam(
    learning_rate: Scalar | Schedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
) -> GradientTransformation:
    """Adam: every parameter moves by about the learning rate, along a mean of its recent gradients.

    params ← params - learning_rate · mu' / (sqrt(nu') + eps), where mu' and nu' are the bias-corrected decaying means
    of the gradient and of its square; see `scale_by_adam`.

    Parameters
    ----------
    learning_rate
        A number, or a schedule.
    b1, b2, eps, eps_root
        As for `scale_by_adam`.

    References
    ----------
    .. [1] Kingma & Ba (2015), Adam: a method for stochastic optimization. ICLR.

    Examples
    --------
    >>> import funcgrad as fg
    >>> optimizer = fg.optim.adam(0.1)
    >>> updates, state = optimizer.update(5.0, optimizer.init(1.0))
    >>> round(float(updates), 6)
    -0.1
    """
    return chain(scale_by_adam(b1, b2, eps, eps_root), scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: Scalar | Schedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    weight_decay: Scalar = 1e-4,
    mask: Any = None,
) -> GradientTransformation:
    """Adam with decoupled weight decay.

    params ← params - learning_rate · (adam + weight_decay · params). The decay does not go through the means, as it
    would if it were part of the loss; so it acts on all parameters alike.

    Parameters
    ----------
    learning_rate
        A number, or a schedule.
    b1, b2, eps, eps_root
        As for `scale_by_adam`.
    weight_decay
        It is multiplied by the learning rate.
    mask
        Which parameters decay; see `add_decayed_weights`.

    References
    ----------
    .. [1] Loshchilov & Hutter (2019), Decoupled weight decay regularization. ICLR.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
