"""Checks of derivatives and transforms at a point: each passes, or says where something is wrong."""

from funcgrad.testing.check import check_grads
from funcgrad.testing.compiled import check_jit
from funcgrad.testing.custom import check_custom_rule
from funcgrad.testing.numerical import complex_step, finite_differences, numerical_jvp
from funcgrad.testing.properties import gradients
from funcgrad.testing.rows import check_vmap
from funcgrad.testing.strategies import arrays, like, programs

__all__ = [
    "arrays",
    "check_custom_rule",
    "check_grads",
    "check_jit",
    "check_vmap",
    "complex_step",
    "finite_differences",
    "gradients",
    "like",
    "numerical_jvp",
    "programs",
]
