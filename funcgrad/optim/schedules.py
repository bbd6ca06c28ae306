"""Schedules: functions from the number of steps taken to a learning rate.

Each returns a function of `count`, which may be an int, an array or traced; the result is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi
from typing import Any

from funcgrad import numpy as fnp
from funcgrad.base.errors import ParameterError
from funcgrad.numpy.parameters import number, sequence
from funcgrad.optim.transformation import Scalar, Schedule


def _require_positive(name: str, what: str, steps: Any) -> None:
    if number(name, what, steps) <= 0:
        raise ParameterError(f"{name}: {what} must be positive, got {steps}")


def _fraction(count: Any, begin: int, steps: int) -> Any:
    """How much of the transition is over: 0 up to `begin`, 1 from ``begin + steps`` on."""
    return fnp.clip((fnp.asarray(count) - begin) / steps, 0.0, 1.0)


def constant_schedule(value: Scalar) -> Schedule:
    """Always `value`."""
    return lambda count: fnp.asarray(value, float)


def polynomial_schedule(
    init_value: Scalar, end_value: Scalar, power: Scalar, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From `init_value` to `end_value`: end + (init - end) · (1 - s)^power, where s grows from 0 to 1.

    Parameters
    ----------
    transition_steps
        How many steps the transition takes.
    transition_begin
        The step it begins at.
    """
    _require_positive("polynomial_schedule", "transition_steps", transition_steps)

    def schedule(count: Any) -> Any:
        s = _fraction(count, transition_begin, transition_steps)
        return end_value + (init_value - end_value) * (1 - s) ** power

    return schedule


def linear_schedule(
    init_value: Scalar, end_value: Scalar, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From `init_value` to `end_value` in a straight line.

    Examples
    --------
    >>> schedule = linear_schedule(1.0, 0.0, 10)
    >>> [float(schedule(t)) for t in (0, 5, 10, 20)]
    [1.0, 0.5, 0.0, 0.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def exponential_decay(
    init_value: Scalar,
    transition_steps: int,
    decay_rate: Scalar,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Scalar | None = None,
) -> Schedule:
    """init_value · decay_rate^((count - transition_begin) / transition_steps).

    Parameters
    ----------
    transition_steps
        The value is multiplied by `decay_rate` once in so many steps.
    transition_begin
        Before this step the value is `init_value`.
    staircase
        Multiply all at once at the end of each transition, instead of gradually.
    end_value
        A bound that the value does not cross.
    """
    _require_positive("exponential_decay", "transition_steps", transition_steps)

    def schedule(count: Any) -> Any:
        s = fnp.maximum(fnp.asarray(count) - transition_begin, 0) / transition_steps
        value = init_value * decay_rate ** (fnp.floor(s) if staircase else s)
        if end_value is None:
            return value
        return fnp.where(decay_rate < 1, fnp.maximum(value, end_value), fnp.minimum(value, end_value))

    return schedule


def cosine_decay_schedule(
    init_value: Scalar, decay_steps: int, alpha: Scalar = 0.0, exponent: Scalar = 1.0
) -> Schedule:
    """From `init_value` down to alpha · init_value along half a cosine.

    init_value · ((1 - alpha) · ((1 + cos(π s)) / 2)^exponent + alpha), where s grows from 0 to 1 in `decay_steps`.

    References
    ----------
    .. [1] Loshchilov & Hutter (2017), SGDR: stochastic gradient descent with warm restarts. ICLR.
    """
    _require_positive("cosine_decay_schedule", "decay_steps", decay_steps)

    def schedule(count: Any) -> Any:
        bell = (1 + fnp.cos(pi * _fraction(count, 0, decay_steps))) / 2
        return init_value * ((1 - alpha) * bell**exponent + alpha)

    return schedule


def piecewise_constant_schedule(
    init_value: Scalar, boundaries_and_scales: Mapping[int, Scalar] | None = None
) -> Schedule:
    """`init_value`, multiplied by a factor at each boundary.

    Parameters
    ----------
    boundaries_and_scales
        From a step to a factor, which multiplies the value from that step on.

    Examples
    --------
    >>> schedule = piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.5})
    >>> [float(schedule(t)) for t in (9, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    def schedule(count: Any) -> Any:
        value = fnp.asarray(init_value, float)
        for boundary, factor in sorted((boundaries_and_scales or {}).items()):
            value = value * fnp.where(fnp.asarray(count) >= boundary, factor, 1.0)
        return value

    return schedule


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts from 0 at the boundary where it takes over."""
    schedules = sequence("join_schedules", "schedules", schedules)
    boundaries = sequence("join_schedules", "boundaries", boundaries)
    if len(schedules) != len(boundaries) + 1:
        raise ParameterError(
            f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, got {len(boundaries)}"
        )

    def schedule(count: Any) -> Any:
        count = fnp.asarray(count)
        value = schedules[0](count)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            value = fnp.where(count < boundary, value, following(count - boundary))
        return value

    return schedule


def warmup_constant_schedule(init_value: Scalar, peak_value: Scalar, warmup_steps: int) -> Schedule:
    """From `init_value` up to `peak_value` in a straight line, then constant."""
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Scalar,
    peak_value: Scalar,
    warmup_steps: int,
    decay_steps: int,
    end_value: Scalar = 0.0,
    exponent: Scalar = 1.0,
) -> Schedule:
    """Up from `init_value` to `peak_value` in a straight line, then down to `end_value` along half a cosine.

    Parameters
    ----------
    warmup_steps
        How many steps the way up takes.
    decay_steps
        How many steps both take together.
    """
    if decay_steps <= warmup_steps:
        raise ParameterError(
            f"warmup_cosine_decay_schedule: decay_steps counts the warm-up too, and must be more than "
            f"warmup_steps={warmup_steps}, got {decay_steps}"
        )
    up = linear_schedule(init_value, peak_value, warmup_steps)
    bell = cosine_decay_schedule(1.0, decay_steps - warmup_steps, exponent=exponent)
    return join_schedules([up, lambda count: end_value + (peak_value - end_value) * bell(count)], [warmup_steps])
