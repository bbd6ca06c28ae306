"""Optimizers as pairs of pure functions, which compose.

    optimizer = fg.optim.adam(1e-3)
    state = optimizer.init(params)

    @fg.jit
    def step(params, state, x, y):
        gradient = fg.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return fg.optim.apply_updates(params, updates), state

States are pytrees of arrays. A learning rate is a number, or a schedule: a function of the number of steps taken.
"""

from funcgrad.optim.optimizers import adam, adamw, sgd
from funcgrad.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    polynomial_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
)
from funcgrad.optim.transformation import (
    EmptyState,
    GradientTransformation,
    ScaleByAdamState,
    ScaleByScheduleState,
    TraceState,
    add_decayed_weights,
    apply_updates,
    chain,
    clip,
    clip_by_global_norm,
    global_norm,
    identity,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_schedule,
    stateless,
    trace,
)

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "ScaleByAdamState",
    "ScaleByScheduleState",
    "TraceState",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "global_norm",
    "identity",
    "join_schedules",
    "linear_schedule",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "sgd",
    "stateless",
    "trace",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
]
