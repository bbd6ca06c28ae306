"""Checks of derivatives and transforms at a point: each passes, or says where something is wrong."""

from funcgrad.testing.gradients import check_grads
from funcgrad.testing.numerical import complex_step, finite_differences, numerical_jvp

__all__ = ["check_grads", "complex_step", "finite_differences", "numerical_jvp"]
