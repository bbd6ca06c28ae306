"""funcgrad: NumPy code in; exact derivatives of any order, batched and compiled, out.

import numpy as np
import funcgrad as fg

def loss(params, x, y):
    return np.mean((np.tanh(x @ params["w"]) + params["b"] - y) ** 2)

gradient = fg.grad(loss)(params, x, y)        # a dict like params
step = fg.jit(fg.value_and_grad(loss))        # traced once, then run
curvature = fg.hessian(loss)(params, x, y)    # any order, any nesting
"""

import importlib

from funcgrad import debug, errors, extend, implicit, lax, lowering, nn, numpy, optim, special, tree, tree as tree_util
from funcgrad.api import (
    CustomVJPPrimal,
    Device,
    Jit,
    ShapeDtypeStruct,
    SymbolicZero,
    checkpoint,
    checkpoint as remat,
    checkpoint_name,
    checkpoint_policies,
    cost,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    device_get,
    device_put,
    devices,
    eval_shape,
    from_numba,
    grad,
    hessian,
    hvp,
    io_callback,
    jacfwd,
    jacobian,
    jacrev,
    jit,
    jvp,
    linearize,
    make_program,
    pure_callback,
    show,
    stop_gradient,
    to_numba,
    value_and_grad,
    vjp,
    vmap,
)
from funcgrad.base.dtypes import float0
from funcgrad.core.array import Array, config
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Program
from funcgrad.core.modes import disable_jit
from funcgrad.core.nans import debug_nans
from funcgrad.implicit import custom_linear_solve, custom_root

__version__ = "0.1.0.dev0"

_PLANNED = {
    "random": "random numbers; use numpy.random.default_rng outside",
    "scipy": "SciPy's modules; funcgrad.special has some functions",
}


_LATER = {"testing"}  # modules that few programs need, loaded when they are


def __getattr__(name: str) -> object:
    if name in _LATER:
        return importlib.import_module(f"funcgrad.{name}")
    if name in _PLANNED:
        raise AttributeError(f"funcgrad.{name} is planned, and not there yet: {_PLANNED[name]}")
    raise AttributeError(f"module 'funcgrad' has no attribute {name!r}")


__all__ = [
    "Array",
    "CustomVJPPrimal",
    "Device",
    "DeviceArray",
    "Jit",
    "Program",
    "ShapeDtypeStruct",
    "SymbolicZero",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "config",
    "cost",
    "custom_gradient",
    "custom_jvp",
    "custom_linear_solve",
    "custom_root",
    "custom_vjp",
    "debug",
    "debug_nans",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "errors",
    "eval_shape",
    "extend",
    "float0",
    "from_numba",
    "grad",
    "hessian",
    "hvp",
    "implicit",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linearize",
    "lowering",
    "make_program",
    "nn",
    "numpy",
    "optim",
    "pure_callback",
    "remat",
    "show",
    "special",
    "stop_gradient",
    "testing",
    "to_numba",
    "tree",
    "tree_util",
    "value_and_grad",
    "vjp",
    "vmap",
]
