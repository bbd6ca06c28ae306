"""Functions of whole rows: softmax and its logarithm, one_hot, standardize."""

from __future__ import annotations

from math import inf
from typing import Any

from funcgrad import numpy as fnp
from funcgrad.base.errors import DtypeError, ParameterError, printed
from funcgrad.core.trace import describe
from funcgrad.nn.activations import inexact
from funcgrad.numpy.operands import array, given_dtype, normalize_axis, public
from funcgrad.ops.arithmetic import stop_gradient

Axis = int | tuple[int, ...] | None


def _exponentials(x: Any, axis: Axis, where: Any) -> tuple[Any, Any, Any]:
    """x less its maximum m, exp(x - m), and the sum of these; the sum is 0 where there is nothing to add."""
    if where is not None:
        x = fnp.where(where, x, -inf)
    top = stop_gradient(fnp.max(x, axis=axis, keepdims=True, initial=None if x.size else -inf))
    shifted = x - fnp.where(fnp.isfinite(top), top, 0)
    e = fnp.exp(shifted)
    return shifted, e, fnp.sum(e, axis=axis, keepdims=True)


@public()
def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along `axis`: positive numbers that add up to 1.

    Parameters
    ----------
    axis
        One axis, several, or None for all.
    where
        A boolean mask that broadcasts with `x`; elements outside it count as -inf, and have the result 0.

    Notes
    -----
    The largest element is subtracted first, so nothing overflows. Where all elements of a row are -inf (or masked),
    its result is 0, and so is the derivative. With y = softmax(x): dy = y · (dx - sum(y · dx)).

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.array([1000.0, 1000.0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    _, e, total = _exponentials(inexact(x, "softmax"), axis, where)
    return e / fnp.where(total == 0, 1, total)


@public()
def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """log(softmax(x)) = x - logsumexp(x), accurate also where softmax underflows.

    Parameters
    ----------
    axis, where
        As for `softmax`; the result is -inf outside the mask.

    Notes
    -----
    The result is -inf for a row that is -inf everywhere. The derivative is dx - sum(softmax(x) · dx).
    """
    shifted, _, total = _exponentials(inexact(x, "log_softmax"), axis, where)
    return shifted - fnp.log(fnp.where(total == 0, 1, total))


@public()
def one_hot(x: Any, num_classes: int, dtype: Any = float, axis: int = -1) -> Any:
    """Integers as unit vectors: 1 where the position along the new axis equals `x`, else 0.

    Parameters
    ----------
    x
        Array of integers. A number outside 0 … num_classes - 1 gives a vector of zeros.
    num_classes
        Length of the new axis.
    dtype
        Of the result.
    axis
        Where the new axis stands in the result.

    Examples
    --------
    >>> one_hot([2, 0], 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    x = array(x, "one_hot")
    if x.dtype.kind not in "biu":
        raise DtypeError(f"one_hot takes integers, got {describe(x)}", hint="one_hot(x.astype(int), num_classes)")
    if not hasattr(num_classes, "__index__") or num_classes.__index__() < 0:
        raise ParameterError(f"one_hot: num_classes is a number of classes, got {printed(num_classes)}")
    axis = normalize_axis("one_hot", axis, x.ndim + 1)
    n = num_classes.__index__()
    classes = fnp.reshape(fnp.arange(n), (n, *(1,) * (x.ndim - axis)))
    return fnp.astype(fnp.expand_dims(x, axis) == classes, given_dtype("one_hot", dtype))


@public()
def standardize(
    x: Any, axis: Axis = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None
) -> Any:
    """(x - mean) / sqrt(variance + epsilon) along `axis`: mean 0 and variance 1.

    Parameters
    ----------
    mean, variance
        Known ones, that broadcast against `x`. Default: those of `x`.
    where
        A boolean mask: which elements count for mean and variance.
    """
    x = inexact(x, "standardize")
    mask = True if where is None else where
    if mean is None:
        mean = fnp.mean(x, axis=axis, keepdims=True, where=mask)
    if variance is None:
        variance = fnp.mean(fnp.square(x - mean), axis=axis, keepdims=True, where=mask)
    return (x - mean) / fnp.sqrt(fnp.add(variance, epsilon))


logsumexp = fnp.logsumexp
