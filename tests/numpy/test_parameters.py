"""Static parameters: every public function given every kind of wrong value raises an error of funcgrad, or takes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import (
    ArgumentError,
    ConcretizationTypeError,
    FuncgradError,
    IndexingError,
    ParameterError,
    ProgramError,
    ShapeError,
)
from funcgrad.numpy import parameters

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
X = np.ones((2, 3))
BAD: dict[str, Any] = {
    "None": None, "str": "abc", "object": object(), "list": [], "dict": {}, "tuple": (), "list of None": [None],
    "list of str": ["a"], "ragged": [[1, 2], [3]], "array of str": np.array(["a"]), "ints": np.array([1, 2]),
    "records": np.zeros(2, [("a", int)]), "function": lambda: 0, "float": 1.5, "negative": -7, "huge": 10**30,
    "masked": np.ma.array([1, 2], mask=[0, 1]), "matrix": np.array([[1, 2]]).view(np.matrix),
    "set": {1, 2}, "range": range(3),
    "slice": slice(None), "ellipsis": ..., "nan": np.nan, "inf": np.inf, "complex": 1j, "type": int,
}  # fmt: skip
NUMPY_OWN = {
    "can_cast", "diag_indices", "finfo", "iinfo", "index_exp", "issubdtype", "ix_", "mgrid", "ogrid", "promote_types",
    "s_", "tril_indices", "triu_indices",
}  # fmt: skip
FUNCTIONS = [
    n for n in fnp.__all__ if n not in NUMPY_OWN and callable(getattr(fnp, n)) and not isinstance(getattr(fnp, n), type)
]
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "f(bad)": lambda f, x, bad: f(bad),
    "f(x, bad)": lambda f, x, bad: f(x, bad),
    "f(bad, x)": lambda f, x, bad: f(bad, x),
    "f(x, x, bad)": lambda f, x, bad: f(x, x, bad),
    "f(x, x[0], axis=bad)": lambda f, x, bad: f(x, x[0], axis=bad),
    "f([x, bad])": lambda f, x, bad: f([x, bad]),
    "axis": lambda f, x, bad: f(x, axis=bad),
    "dtype": lambda f, x, bad: f(x, dtype=bad),
    "keepdims": lambda f, x, bad: f(x, keepdims=bad),
    "where": lambda f, x, bad: f(x, where=bad),
    "initial": lambda f, x, bad: f(x, initial=bad),
    "k": lambda f, x, bad: f(x, k=bad),
    "order": lambda f, x, bad: f(x, order=bad),
}


def fault(call: Callable[[], Any]) -> str:
    """What `call` raises that it should not, or ''."""
    try:
        call()
    except ProgramError as error:
        return repr(error)
    except FuncgradError:
        return ""
    except TypeError as error:
        text = str(error)  # Python's own complaint about a call is a good one
        return "" if any(w in text for w in ("positional", "unexpected keyword", "multiple values")) else repr(error)
    except Exception as error:
        return repr(error)
    return ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_values_raise_errors_of_funcgrad(name: str) -> None:
    function = getattr(fnp, name)
    faults = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, call in CALLS.items():
            for kind, bad in BAD.items():
                eager = fault(lambda call=call, bad=bad: call(function, X, bad))
                traced = fault(lambda call=call, bad=bad: fg.make_program(lambda x: call(function, x, bad))(X))
                faults += [f"{what}, {kind}: {f}" for f in (eager, traced) if f]
    assert not faults


@pytest.mark.parametrize(
    "call",
    [
        lambda x, bad: x.at[0].apply(bad) if not callable(bad) else None,
        lambda x, bad: x.at[0].set(1.0, mode=bad),
        lambda x, bad: x.at[0].add(bad),
        lambda x, bad: x.at[0].get(mode=bad),
        lambda x, bad: x.at[bad].set(1.0),
        lambda x, bad: x[bad] if type(x) is not fnp.ndarray else None,
        lambda x, bad: fg.nn.gelu(x, bad),
        lambda x, bad: fg.nn.squareplus(x, bad),
        lambda x, bad: fg.nn.softmax(x, bad),
    ],
)
def test_wrong_values_of_updates_and_layers(call: Callable[[Any, Any], Any]) -> None:
    for kind, bad in BAD.items():
        assert not fault(lambda bad=bad: call(fnp.asarray(X), bad)), kind
        assert not fault(lambda bad=bad: fg.make_program(lambda x: call(x, bad))(X)), kind


def test_errors_of_updates() -> None:
    x = fnp.ones(3)
    with pytest.raises(ArgumentError, match="a function is needed"):
        x.at[0].apply(3)
    with pytest.raises(ParameterError, match="mode is one of"):
        x.at[0].set(1.0, mode=[])  # type: ignore[arg-type]
    with pytest.raises(IndexingError, match="got type"):
        x.at[int].set(1.0)


def test_helpers() -> None:
    assert parameters.integer("f", "n", np.int8(3)) == parameters.integer("f", "n", np.array(3)) == 3
    assert parameters.integers("f", "n", np.arange(2)) == (0, 1)
    assert parameters.integers("f", "n", 4) == (4,)
    assert parameters.flag("f", "b", np.bool_(True)) is parameters.flag("f", "b", 1) is True
    assert parameters.flag("f", "b", None) is parameters.flag("f", "b", np.array(0)) is False
    assert parameters.number("f", "a", np.array(1.5)) == 1.5
    assert parameters.sequence("f", "a", range(2)) == [0, 1]
    with pytest.raises(ArgumentError, match="f: n must be an integer"):
        parameters.integer("f", "n", 1.5)
    with pytest.raises(ParameterError, match="f: m is 'a' or 'b', got 'c'"):
        parameters.one_of("f", "m", "c", ("a", "b"))
    with pytest.raises(ParameterError, match="too large"):
        parameters.sized("f", (2**40, 0, 2**40))


def test_known_values_serve_as_static_parameters() -> None:
    """Under grad the value is there; under jit it is not, and the error says so."""
    assert fg.grad(lambda x, k: fnp.sum(fnp.tril(x, k)))(X, 0).tolist() == [[1, 0, 0], [1, 1, 0]]
    assert fg.grad(lambda x, i: fnp.delete(x, i, 1).sum())(X, 1).tolist() == [[1, 0, 1]] * 2
    assert fg.grad(lambda x, i: fnp.insert(x, [i], 0.0, 1).sum())(X, 1).tolist() == [[1] * 3] * 2
    for f in (fnp.tril, fnp.diagonal, lambda x, i: fnp.delete(x, i, 0), lambda x, i: fnp.insert(x, [i], 0.0, 0)):
        with pytest.raises(ConcretizationTypeError, match="static"):
            fg.jit(f)(X, 1)


def test_large_numbers_neither_hang_nor_overflow() -> None:
    with pytest.raises(ParameterError, match="too many"):
        fnp.array_split(X, 10**30)
    with pytest.raises(ShapeError):
        fnp.split(X, 10**5)
    assert fnp.diff(X, 10**30).shape == (2, 0)
    assert fnp.tril(X, 10**30).tolist() == X.tolist()
    assert fnp.eye(2, k=-(10**30)).tolist() == [[0, 0], [0, 0]]
    assert np.isnan(fnp.round(np.ones(2), 400)).all()
    with pytest.raises(ParameterError, match="too large"):
        fnp.tile(X, 10**30)
