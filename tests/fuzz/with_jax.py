"""Random programs in JAX: the same code, where `np`, `fg` and `lax` are JAX's.

What JAX does not have (primitives without a public name, reverse mode through `while_loop`, custom rules that capture)
is left out, and so are programs with a guarded division: zeros that funcgrad guards are NaN in JAX.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from funcgrad.core.trace import eagerly
from funcgrad.testing.recipes import Recipe
from tests.fuzz.comparisons import Checker, Failure, Outcome, primitives

NOT_THERE = ("bind", "custom_linear_solve", "float32", "int32", "checkpoint_policies", "checkpoint_name", "from_python")
OTHERWISE = ("spacing", "nextafter", "stop_gradient", "heaviside", "copysign", "signbit")  # other derivatives
KINKS = ("np.maximum", "np.minimum", "np.fmax", "np.fmin", "np.max", "np.min", "cummax", "cummin", "abs", "max", "min")


def settings(seed: int) -> AbstractContextManager[None]:
    """None."""
    return nullcontext()


@lru_cache(1)
def names() -> dict[str, Any]:
    """What the names of a program are in JAX."""
    import jax

    jax.config.update("jax_enable_x64", True)
    fg = SimpleNamespace(
        **{name: getattr(jax, name) for name in (
            "jit", "grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian", "checkpoint", "custom_jvp",
            "custom_vjp", "vmap",
        )},
        special=jax.scipy.special, nn=jax.nn, numpy=jax.numpy,
    )  # fmt: skip
    return {"np": jax.numpy, "lax": jax.lax, "fg": fg}


def compare(recipe: Recipe, outcome: Outcome, seed: int = 0) -> None:
    """Values in JAX against those of the oracle."""
    if recipe.uses(*NOT_THERE, *OTHERWISE) or "mask_mul" in primitives(recipe):
        return
    import jax

    checker = Checker(recipe)
    try:
        with np.errstate(all="ignore"), eagerly():
            found = [np.asarray(y) for y in recipe.function(names())(*[jax.numpy.asarray(a) for a in recipe.args])]
    except Exception as error:  # what JAX cannot do is not our fault
        outcome.unsettled.append(f"jax:{type(error).__name__}")
        return
    tied = recipe.order and recipe.uses(*KINKS)  # JAX shares a derivative between equal elements
    try:
        checker.compare("jax", found, checker.expected, recipe, recipe.args)
        outcome.ways.append("jax")
    except Failure as failure:
        if tied or "types" in failure.what:
            outcome.unsettled.append("jax:otherwise")
        else:
            outcome.failure = failure
