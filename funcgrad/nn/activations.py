"""Activation functions: elementwise, and `glu`.

Integers are taken as float64, except by `relu` and its clipped relatives, which keep them. At a kink the derivative is
stated in the Notes, and holds to every order.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.base.dtypes import FLOAT, is_inexact
from funcgrad.base.errors import ShapeError
from funcgrad.core.trace import describe
from funcgrad.numpy.elementwise import call
from funcgrad.numpy.operands import array, broadcast_operands, normalize_axis, public
from funcgrad.numpy.parameters import flag
from funcgrad.ops import exponential, special

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def inexact(x: Any, name: str) -> Any:
    """An operand with a floating dtype."""
    x = array(x, name)
    return x if is_inexact(x.dtype) else fnp.astype(x, FLOAT)


# -- rectifiers


@public()
def relu(x: Any) -> Any:
    """Rectified linear unit: x where x > 0, else 0.

    Notes
    -----
    The derivative is 1 where x > 0, and 0 elsewhere, at 0 too. NaN stays NaN.

    References
    ----------
    .. [1] Nair & Hinton (2010), Rectified linear units improve restricted Boltzmann machines. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([-2.0, 0.0, 3.0])).tolist()
    [0.0, 0.0, 3.0]
    """
    x = array(x, "relu")
    return fnp.where(x <= 0, 0, x)


@public()
def relu6(x: Any) -> Any:
    """Rectified linear unit with a ceiling: min(max(x, 0), 6).

    Notes
    -----
    The derivative is 1 between 0 and 6, and 0 elsewhere, at 0 and 6 too.
    """
    x = array(x, "relu6")
    return fnp.where(x <= 0, 0, fnp.where(x >= 6, 6, x))


@public()
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x where x >= 0, else negative_slope · x.

    Parameters
    ----------
    negative_slope
        The slope below 0; may be an array (and differentiated), which makes it a parametric rectifier.

    Notes
    -----
    The derivative is 1 at 0.
    """
    x = inexact(x, "leaky_relu")
    return fnp.where(x >= 0, x, fnp.multiply(negative_slope, x))


@public()
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """Exponential linear unit: x where x > 0, else alpha · (exp(x) - 1).

    Notes
    -----
    The derivative is alpha at 0.

    References
    ----------
    .. [1] Clevert, Unterthiner & Hochreiter (2016), Fast and accurate deep network learning by exponential linear
       units. ICLR.
    """
    x = inexact(x, "elu")
    return fnp.where(x > 0, x, fnp.multiply(alpha, fnp.expm1(x)))


@public()
def selu(x: Any) -> Any:
    """Self-normalizing exponential linear unit: scale · elu(x, alpha).

    alpha = 1.6733 and scale = 1.0507 make mean 0 and variance 1 a stable fixed point of deep layers.

    References
    ----------
    .. [1] Klambauer et al. (2017), Self-normalizing neural networks. NeurIPS.
    """
    return SELU_SCALE * elu(inexact(x, "selu"), SELU_ALPHA)


@public()
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """Continuously differentiable exponential linear unit: x where x > 0, else alpha · (exp(x / alpha) - 1).

    Notes
    -----
    The derivative is 1 at 0, whatever alpha is.
    """
    x = inexact(x, "celu")
    return fnp.where(x > 0, x, fnp.multiply(alpha, fnp.expm1(fnp.divide(x, alpha))))


# -- smooth gates


@public()
def sigmoid(x: Any) -> Any:
    """The logistic function: 1 / (1 + exp(-x)).

    Notes
    -----
    It does not overflow, and is accurate in both tails. The derivative is sigmoid(x) · sigmoid(-x).

    Examples
    --------
    >>> sigmoid([-1000.0, 0.0, 1000.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    return call(exponential.sigmoid_p, inexact(x, "sigmoid"))


@public()
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)) = -softplus(-x): x where x is very negative, -exp(-x) where it is very positive.

    Notes
    -----
    The derivative is sigmoid(-x).
    """
    return -softplus(-inexact(x, "log_sigmoid"))


@public()
def softplus(x: Any) -> Any:
    """log(1 + exp(x)): exp(x) where x is very negative, x where it is very positive.

    Notes
    -----
    It neither overflows nor loses digits in the tails. The derivative is sigmoid(x), the second one
    sigmoid(x) · sigmoid(-x).

    Examples
    --------
    >>> softplus([-1000.0, 1000.0]).tolist()
    [0.0, 1000.0]
    """
    return fnp.logaddexp(inexact(x, "softplus"), 0)


@public()
def silu(x: Any) -> Any:
    """Sigmoid linear unit: x · sigmoid(x). Also called swish.

    References
    ----------
    .. [1] Elfwing, Uchibe & Doya (2018), Sigmoid-weighted linear units for neural network function approximation in
       reinforcement learning. Neural Networks 107.
    """
    x = inexact(x, "silu")
    return gated(x, sigmoid(x))


@public()
def gelu(x: Any, approximate: bool = True) -> Any:
    """Gaussian error linear unit: x · Φ(x), with Φ the distribution function of the standard normal.

    Parameters
    ----------
    approximate
        True: Φ(x) is replaced by sigmoid(2 u), with u = sqrt(2 / π) · (x + 0.044715 x³); this is the form with tanh,
        (1 + tanh u) / 2, and off by at most 5e-4. False: Φ(x) = erfc(-x / sqrt(2)) / 2.

    References
    ----------
    .. [1] Hendrycks & Gimpel (2016), Gaussian error linear units. arXiv:1606.08415.
    """
    x = inexact(x, "gelu")
    if flag("gelu", "approximate", approximate):
        return gated(x, sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * (x * x * x))))
    return gated(x, 0.5 * call(special.erfc_p, -sqrt(0.5) * x))


@public()
def mish(x: Any) -> Any:
    """x · tanh(softplus(x)).

    References
    ----------
    .. [1] Misra (2020), Mish: a self regularized non-monotonic activation function. BMVC.
    """
    x = inexact(x, "mish")
    return gated(x, fnp.tanh(softplus(x)))


def gated(x: Any, gate: Any) -> Any:
    """x · gate, and 0 where the gate is shut: also at x = -inf."""
    return fnp.where(gate == 0, 0, x * gate)


@public()
def soft_sign(x: Any) -> Any:
    """x / (1 + |x|).

    Notes
    -----
    The derivative is 1 at 0.
    """
    x = inexact(x, "soft_sign")
    return x / (1 + fnp.abs(x))


@public()
def squareplus(x: Any, b: Any = 4.0) -> Any:
    """(x + sqrt(x² + b)) / 2: a rectifier that is smooth for b > 0, without exponentials."""
    x = inexact(x, "squareplus")
    x, b = broadcast_operands("squareplus", [x, fnp.astype(array(b, "squareplus"), x.dtype)])
    size = fnp.abs(x)
    huge = size > np.sqrt(np.finfo(x.dtype).max) / 2  # x² would overflow, and b does not count
    root = fnp.where(huge, size, fnp.sqrt(fnp.square(fnp.where(huge, 0, x)) + b))
    # b / (root - x) is the same number, without cancellation where x < 0
    return fnp.where(x >= 0, x / 2 + root / 2, b / (root - x) / 2)


# -- piecewise linear


@public()
def hard_tanh(x: Any) -> Any:
    """x held between -1 and 1.

    Notes
    -----
    The derivative is 1 from -1 to 1, bounds included, and 0 elsewhere.
    """
    x = array(x, "hard_tanh")
    return fnp.where(x > 1, 1, fnp.where(x < -1, -1, x))


@public()
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6: 0 up to -3, 1 from 3 on, linear between."""
    return relu6(inexact(x, "hard_sigmoid") + 3) / 6


@public()
def hard_silu(x: Any) -> Any:
    """x · hard_sigmoid(x). Also called hard swish.

    References
    ----------
    .. [1] Howard et al. (2019), Searching for MobileNetV3. ICCV.
    """
    x = inexact(x, "hard_silu")
    return gated(x, hard_sigmoid(x))


# -- gated linear unit


@public()
def glu(x: Any, axis: int = -1) -> Any:
    """Gated linear unit: the first half of `axis` times the sigmoid of the second half.

    Raises
    ------
    ShapeError
        The length of `axis` is odd.

    References
    ----------
    .. [1] Dauphin et al. (2017), Language modeling with gated convolutional networks. ICML.
    """
    x = inexact(x, "glu")
    axis = normalize_axis("glu", axis, x.ndim)
    n = x.shape[axis]
    if n % 2:
        raise ShapeError(f"glu: axis {axis} of {describe(x)} has odd length {n}")
    before = (slice(None),) * axis
    return x[(*before, slice(n // 2))] * sigmoid(x[(*before, slice(n // 2, None))])


swish = silu
hard_swish = hard_silu
