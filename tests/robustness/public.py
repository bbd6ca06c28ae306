"""Every function of the public face under a name, called with plain positional and keyword arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.testing
from funcgrad.core.trace import Tracer
from funcgrad.numpy.updates import AtIndex

MODULES = {
    "": fg, "numpy": fg.numpy, "numpy.linalg": fg.numpy.linalg, "lax": fg.lax, "nn": fg.nn, "optim": fg.optim,
    "tree": fg.tree, "testing": fg.testing, "extend": fg.extend, "special": fg.special, "debug": fg.debug,
    "errors": fg.errors,
}  # fmt: skip
CHANGES_THE_PROCESS = {
    "tree.register_dataclass", "tree.register_pytree_node", "tree.register_pytree_node_class",
    "tree.register_pytree_with_keys", "tree.register_static", "config", "disable_jit", "debug_nans",
}  # fmt: skip
"""They do what they are asked to, to all later calls."""
SLOW = ("testing.", "to_numba", "from_numba", "cost", "show")
OPERATORS = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "lt",
    "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs", "invert", "getitem", "setitem", "delitem", "contains", "iadd",
    "imul", "concat", "index", "truth", "length_hint",
]  # fmt: skip
METHODS = [k for k in dir(Tracer) if not k.startswith("_") and k not in ("owner", "atom", "aval", "stopped")]
CONVERSIONS = ["__array__", "__bool__", "__complex__", "__contains__", "__copy__", "__deepcopy__", "__dlpack__",
               "__float__", "__format__", "__hash__", "__index__", "__int__", "__iter__", "__len__", "__reduce_ex__",
               "__repr__", "__round__", "__setitem__", "__str__", "__array_namespace__", "__sizeof__"]  # fmt: skip
OF_FILES = {
    "save", "savetxt", "savez", "savez_compressed", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "fromregex",
    "test", "info", "show_config", "show_runtime", "seterr", "seterrcall", "setbufsize", "errstate", "set_printoptions",
    "printoptions", "frompyfunc", "vectorize", "nditer", "nested_iters", "busdaycalendar", "get_include", "lookfor",
    "from_dlpack", "frombuffer", "require", "DataSource", "may_share_memory", "shares_memory",
}  # fmt: skip
AT = ["get", "set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply"]


def _of_modules() -> Iterator[tuple[str, Callable[..., Any]]]:
    for prefix, module in MODULES.items():
        for name in getattr(module, "__all__", None) or [k for k in dir(module) if not k.startswith("_")]:
            value = getattr(module, name)
            full = f"{prefix}.{name}" if prefix else name
            if callable(value) and not isinstance(value, ModuleType) and full not in CHANGES_THE_PROCESS:
                yield full, value


def _method(name: str) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        value = getattr(x, name)
        return value(*args, **kwargs) if callable(value) else value

    return call


def _at(name: str) -> Callable[..., Any]:
    def call(x: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x.at[index], name)(*args, **kwargs)

    return call


def _called(transform: Callable[..., Any]) -> Callable[..., Any]:
    def call(f: Any, *args: Any, **kwargs: Any) -> Any:
        return transform(f, **kwargs)(*args)

    return call


def _of_transforms() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Transforms whose result is called as well."""
    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap", "jit", "checkpoint", "make_program",
                 "eval_shape", "custom_jvp", "custom_vjp"):  # fmt: skip
        yield f"{name}()()", _called(getattr(fg, name))

    def twice(f: Any, *args: Any) -> Any:
        g = fg.jit(f)
        return g(*args), g(*args)

    yield "jit twice", twice


def _of_numpy() -> Iterator[tuple[str, Callable[..., Any]]]:
    for prefix, module in {"np": np, "np.linalg": np.linalg, "np.fft": np.fft}.items():
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or name in OF_FILES or not callable(value) or isinstance(value, type):
                continue
            if isinstance(value, np.ufunc) or hasattr(value, "__wrapped__") or hasattr(value, "_implementation"):
                yield f"{prefix}.{name}", value


def functions() -> dict[str, Callable[..., Any]]:
    """Name to function."""
    found = dict(_of_modules())
    found |= {f"Array.{name}": _method(name) for name in (*METHODS, *CONVERSIONS) if name not in ("tofile", "dump")}
    found |= {f"operator.{name}": getattr(operator, name) for name in OPERATORS}
    found |= {f"at.{name}": _at(name) for name in AT if hasattr(AtIndex, name)}
    found |= dict(_of_transforms())
    found |= dict(_of_numpy())
    return found
