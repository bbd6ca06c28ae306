"""What can be done with an array on a device: everything that an `Array` does, there."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import DeviceArray, lax
from funcgrad.errors import (
    ArgumentError,
    AssignmentError,
    DeviceError,
    DtypeError,
    IndexingError,
    OutOfBoundsError,
    ParameterError,
    ShapeError,
    TracerIntegerConversionError,
    UnsupportedError,
)
from funcgrad.numpy.operands import has_device_array
from tests.cuda.interpreted import Borrowed

pytestmark = pytest.mark.usefixtures("gpu")
rng = np.random.default_rng(1)
X = rng.normal(size=(3, 4))
N = np.arange(12).reshape(3, 4)


def put(x: Any) -> Any:
    return fg.device_put(x, "cuda")


EXPRESSIONS = {
    "arithmetic": lambda x: (x + 1, 2 - x, x * 0.5, 1 / x, x / 3.0, -x, +x, abs(x), x // 0.3, x % 0.3),
    "powers": lambda x: (x**2, x**3, 2.0**x, x**-1, x**0, x**1.0),
    "two arrays": lambda x: (x + x, x - X, X * x, x / X, X[0] + x, x @ x.T, X.T @ x, x @ X[0]),
    "comparisons": lambda x: (x > 0, x <= X, x == X, x != 0.5, (x > 0) & (x < 1), ~(x > 0)),
    "divmod": lambda x: divmod(x, 0.7),
    "indices": lambda x: (x[0], x[-1, 2], x[1:], x[:, ::-2], x[..., None, 1], x[[0, 2]], x[N[0] % 3], x[N % 3, 1]),
    "attributes": lambda x: (x.T, x.mT, x.real, x.imag),
    "updates": lambda x: (x.at[0].set(1.0), x.at[1, 2].add(x[0, 0]), x.at[:, 1].multiply(2), x.at[[0, 0]].add(1.0)),
    "methods": lambda x: (
        x.sum(), x.sum(axis=0), x.mean(axis=1), x.std(), x.max(0), x.argmin(), x.cumsum(axis=1), x.reshape(4, 3),
        x.argsort(axis=0), x.reshape((2, -1)), x.ravel(), x.transpose(1, 0), x.swapaxes(0, 1), x.astype("float32"),
        x.clip(-0.5, 0.5), x.dot(X[0]), x.repeat(2, axis=0), x.take(N[0, :3], axis=1), x.trace(), x.any(), x.all(),
        x.prod(), x.squeeze(),
    ),
    "numpy": lambda x: (
        np.sin(x), np.add(1.0, x), np.add(X, x), np.maximum(x, 0), np.where(x > 0, x, 0.0), np.mean(x, axis=0),
        np.linalg.norm(x), np.concatenate([x, X]), np.stack([x, x], axis=1), np.add.reduce(x), np.zeros_like(x),
        np.einsum("ij,kj->ik", x, X), np.dot(x, X.T), np.isclose(x, X), np.multiply.outer(x[0], X[0]),
        np.expand_dims(x, 0), np.broadcast_to(x, (2, 3, 4)), np.full_like(x, 2.5), np.round(x, 1), np.var(x, ddof=1),
        np.sort(x), np.sort(x, axis=0), np.argsort(x, axis=None),
    ),
    "several results": lambda x: (*np.modf(x), *np.meshgrid(x[0], x[1]), *np.broadcast_arrays(x, X[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_it_computes_what_an_array_does(name: str) -> None:
    f = EXPRESSIONS[name]
    found, expected = f(put(X)), f(fg.numpy.asarray(X))
    for a, b in zip(found, expected, strict=True):
        assert type(a) is DeviceArray and a.device == "cuda:0"
        assert a.shape == np.shape(b) and a.dtype == np.asarray(b).dtype
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-14, atol=1e-15)


def test_integers() -> None:
    n = put(N)
    for a, b in [
        (n + 1, N + 1), (n // 5, N // 5), (n % 5, N % 5), (n << 1, N << 1), (n & 6, N & 6), (n ^ 3, N ^ 3),
        (n**2, N**2), (5 - n, 5 - N), (n / 2, N / 2), (~n, ~N),
    ]:  # fmt: skip
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), b)


def test_numbers_are_no_part_of_what_is_compiled(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(X)
    x + 0.5, x[0], x * 2
    monkeypatch.setattr(type(gpu), "load", None)
    np.testing.assert_array_equal(np.asarray(x + 0.75), X + 0.75)
    np.testing.assert_array_equal(np.asarray(x[2]), X[2])
    np.testing.assert_array_equal(np.asarray(x * 3), X * 3)
    assert [row.tolist() for row in x] == X.tolist()


def test_what_does_not_depend_on_values_is_known() -> None:
    x = put(X)
    assert (np.shape(x), np.ndim(x), np.size(x), len(x)) == ((3, 4), 2, 12, 3)
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, x.dtype) == ((3, 4), 2, 12, 8, 96, np.dtype(float))
    assert np.result_type(x, 1.0) == np.dtype(float) and not np.iscomplexobj(x)


def test_it_becomes_what_python_asks_for() -> None:
    x = put(np.float64(2.5))
    assert (float(x), int(x), complex(x), bool(x), x.item(), x.tolist(), f"{x:.2f}") == (
        2.5, 2, 2.5 + 0j, True, 2.5, 2.5, "2.50"
    )  # fmt: skip
    assert list(range(5))[put(np.int64(3))] == 3
    y = put(X)
    assert y.tolist() == X.tolist() and y.tobytes() == X.tobytes()
    assert type(np.asarray(y)) is np.ndarray and np.asarray(y, np.float32).dtype == np.float32
    assert y.block_until_ready() is y and 0.0 not in y and X[0, 0] in y
    with pytest.raises(ValueError, match="ambiguous"):
        bool(y)
    with pytest.raises(ValueError, match="copied"):
        np.asarray(y, copy=False)
    with pytest.raises(TypeError, match="without axes"):
        len(x)
    with pytest.raises(TypeError, match="without axes"):
        iter(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(y)


def test_values_that_decide_shapes_are_asked_for() -> None:
    x, y, n, axis = put(X), fg.numpy.asarray(X), put(np.int64(2)), put(np.int64(1))
    for a, b in [
        (x[:n], y[:2]), (x[0 : np.array(2), n:], y[:2, 2:]), (x.at[n:].add(1.0), y.at[2:].add(1.0)),
        (x.max(axis=axis), y.max(axis=1)), (x.reshape(n, -1), y.reshape(2, -1)),
        (np.repeat(x, n), np.repeat(y, 2)),
        (np.repeat(x, np.array([1, 2, 0]), axis=0), np.repeat(y, [1, 2, 0], axis=0)),
        (np.tile(x, (n, 1)), np.tile(y, (2, 1))), (np.pad(x, n), np.pad(y, 2)),
        (np.split(x, np.array([1, 2]))[1], y[1:2]),
    ]:  # fmt: skip
        assert type(a) is DeviceArray
        np.testing.assert_array_equal(np.asarray(a), b)
    with pytest.raises(IndexingError, match="only integer scalar arrays"):
        x[: put(2.0)]
    with pytest.raises(ArgumentError, match="axis must be an integer"):
        np.sum(x, axis={0})
    with pytest.raises(TracerIntegerConversionError):
        fg.jit(lambda n: x[:n])(n)


class Captured:
    """Arrays that functions capture, as `place` makes them of NumPy's."""

    def __init__(self, place: Any) -> None:
        self.x, self.rate, self.few = place(X), place(np.float64(0.5)), place(np.array([2, 0]))
        self.one, self.ends = place(np.int64(1)), place(np.array([1, 2]))
        self.rows, self.mask = place(np.array([True, False, True])), place(X > 0)


CAPTURED: dict[str, Any] = {
    "numbers": lambda v, q: (v * q.rate, q.rate + v, v**q.rate, np.where(v > q.rate, v, q.rate), v.clip(q.rate)),
    "parameters": lambda v, q: (np.isclose(v, q.x, rtol=q.rate), np.full_like(v, q.rate), v.at[0].multiply(q.rate)),
    "arrays": lambda v, q: (v + q.x, q.x.T @ v, np.stack([v, q.x]), fg.numpy.stack(q.x) + v, np.append(v, q.x)),
    "places": lambda v, q: (v[q.few], v[:, q.few], v[q.few, q.one], v[None, q.few], v[q.one], v[[q.one, 0]]),
    "masks": lambda v, q: (v[q.rows], v[q.mask], v.at[q.mask].set(q.rate), v.at[q.rows].add(1.0)),
    "updates": lambda v, q: (v.at[q.few].set(q.rate), v.at[q.few].get(mode="fill", fill_value=q.rate)),
    "methods of updates": lambda v, q: (v.at[q.one].max(q.x[0]), v.at[q.few, q.few].divide(q.rate)),
    "taken": lambda v, q: (np.take(v, q.few, axis=0), np.take(q.x, q.few, axis=0) * v[:2], np.choose(q.one, [v, v])),
    "shapes": lambda v, q: (v[q.one :], np.repeat(v, q.one), np.roll(v, q.one), np.sum(v, q.one), np.pad(v, q.one)),
    "pieces": lambda v, q: (*np.split(v, q.ends, axis=0), np.delete(v, q.few, 0), np.insert(v, q.one, q.rate)),
    "created": lambda v, q: (fg.numpy.arange(q.one, 3) + v[0, 0], fg.numpy.eye(q.one) * v[0, 0], np.diff(v, q.one)),
    "loops": lambda v, q: lax.scan(lambda c, r: (c * q.rate + r, c), v[0], q.x),
    "bodies": lambda v, q: (fg.checkpoint(lambda x: x * q.rate)(v), fg.jit(lambda x: x * q.rate)(v), python(v, q)),
    "rules": lambda v, q: (fg.jvp(lambda x: np.sin(x) * q.rate, (v,), (q.x,)), residuals(q)(v)),
}  # fmt: skip


def python(v: Any, q: Captured) -> Any:
    """Python control flow on values of what is captured."""
    return v * len(q.x) if q.one and int(q.one) == 1 else float(q.rate)


def residuals(q: Captured) -> Any:
    f = fg.custom_vjp(lambda x: x * q.rate)
    f.defvjp(lambda x: (x * q.rate, (q.rate, q.x)), lambda r, ct: (ct * r[0] + 0.0 * r[1],))
    return f


@pytest.mark.parametrize("name", CAPTURED)
def test_functions_capture_it_as_any_array(name: str) -> None:
    f, here, there = CAPTURED[name], Captured(np.asarray), Captured(put)
    y = abs(X) + 0.1
    total = lambda q: lambda v: sum(np.sum(x * 1.0) for x in fg.tree.leaves(f(v, q)))
    for found, expected in [
        (fg.jit(lambda v: f(v, there), device="cpu")(y), fg.jit(lambda v: f(v, here))(y)),
        (fg.grad(total(there))(y), fg.grad(total(here))(y)),
        (fg.vmap(lambda v: f(v, there))(y[None]), fg.vmap(lambda v: f(v, here))(y[None])),
    ]:
        for a, b in zip(fg.tree.leaves(found), fg.tree.leaves(expected), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-13, atol=1e-14)


def test_masks_of_values() -> None:
    x, y = put(X), fg.numpy.asarray(X)
    for a, b in [(x[x > 0], y[X > 0]), (x[X[:, 0] > 0], y[X[:, 0] > 0]), (x[put(True)], y[True])]:
        assert type(a) is DeviceArray
        np.testing.assert_array_equal(np.asarray(a), b)
    assert fg.numpy.arange(put(np.int64(3))).tolist() == [0, 1, 2]


def test_an_array_that_is_gone_is_no_array() -> None:
    x = put(np.zeros((0, 3)))
    x.delete()
    for use in (lambda: x.block_until_ready(), lambda: x.__cuda_array_interface__, lambda: x.tolist(), lambda: x + 1):
        with pytest.raises(DeviceError, match="is gone"):
            use()


def test_its_class_is_not_called() -> None:
    with pytest.raises(ArgumentError, match="DeviceArray is not called to make one") as e:
        DeviceArray(X, X, X)
    assert e.value.hint == "fg.device_put(x, 'cuda')"


def test_how_it_reads() -> None:
    assert repr(put(np.array([1.0, 2.5]))) == "DeviceArray([1. , 2.5], device='cuda:0')"
    assert repr(put(np.int32(3))) == "DeviceArray(3, dtype=int32, device='cuda:0')"


def test_copies_and_pickles() -> None:
    x = put(X)
    for same in (x.copy(), copy.copy(x), copy.deepcopy({"x": x})["x"], put(np.zeros((0, 3))).copy()):
        assert type(same) is DeviceArray and not same.shares(x)
    kept = x.copy()
    fg.jit(lambda x: x * 2, device="cuda", donate_argnums=0)(x)
    assert kept.tolist() == X.tolist()
    with pytest.raises(DeviceError, match="is gone"):
        x.copy()
    x = put(X)
    back = pickle.loads(pickle.dumps(x))
    assert type(back) is np.ndarray and back.tobytes() == X.tobytes()


def test_it_does_not_change() -> None:
    x = put(X)
    with pytest.raises(AssignmentError, match="cannot be changed in place"):
        x[0] = 1.0
    for change in (
        lambda: np.add(X, 1.0, out=x), lambda: np.add(x, 1.0, out=X.copy()), lambda: np.add.at(X.copy(), 0, x),
        lambda: np.copyto(X.copy(), x), lambda: np.fill_diagonal(x, 0.0),
    ):  # fmt: skip
        with pytest.raises(AssignmentError, match="what is computed on cuda:0 is a new array there"):
            change()
    for change in (x.sort, lambda: x.fill(0.0), lambda: x.resize(4, 3)):
        with pytest.raises(AssignmentError, match=r"f64\[3,4\] on cuda:0 cannot be changed in place"):
            change()
    y = x
    y += 1
    np.testing.assert_array_equal(np.asarray(x), X)
    np.testing.assert_array_equal(np.asarray(y), X + 1)


def test_errors_point_at_the_line_that_asked() -> None:
    x = put(X)
    for i in (7, 8):
        with pytest.raises(OutOfBoundsError, match=f"index {i} is out of bounds for axis 0 of length 3") as e:
            x[i]
        assert e.value.source is not None and e.value.source.text == "x[i]"
    with pytest.raises(ShapeError, match="do not broadcast"):
        x + X[:, 0]
    with pytest.raises(TypeError):
        x + "a"


def test_trees_are_put_and_got(gpus: Any) -> None:
    tree = {"a": X, "b": [1, 2.5, None, (True, N)]}
    there = fg.device_put(tree, "cuda:1")
    assert [x.device for x in fg.tree.leaves(there)] == ["cuda:1"] * 5
    assert [str(x.dtype) for x in fg.tree.leaves(there)] == ["float64", "int64", "float64", "bool", "int64"]
    back = fg.device_get(there)
    assert [x.tolist() for x in fg.tree.leaves(back)] == [X.tolist(), 1, 2.5, True, N.tolist()]
    assert fg.device_put(there, "cuda:1")["a"] is there["a"]
    moved = fg.device_put(there, fg.devices()[1])
    assert moved["a"].device == "cuda:0" and moved["a"].tolist() == X.tolist()
    assert there["a"].to_device("cuda:0").device == "cuda:0"
    here = fg.device_put(there, "cpu")
    assert type(here["a"]) is fg.Array and here["a"].tolist() == X.tolist()
    assert type(fg.device_put(X, "cpu")) is fg.Array and not np.shares_memory(fg.device_put(X, "cpu"), X)
    assert fg.device_get(X) is X
    with pytest.raises(ParameterError, match="device_put: device is"):
        fg.device_put(X, "tpu")
    for none in ((), (None,)):
        with pytest.raises(ArgumentError, match="device_put: no device was given; it is 'cpu', 'cuda'") as e:
            fg.device_put(X, *none)
        assert e.value.hint is not None and e.value.hint.startswith("fg.device_put(x, 'cuda')")


def test_layouts_and_byte_orders() -> None:
    for x in (X.T, X[::-1, ::2], X.astype(">f8"), np.asfortranarray(X), np.broadcast_to(X[0], (2, 4))):
        np.testing.assert_array_equal(np.asarray(put(x)), x)
        np.testing.assert_array_equal(np.asarray(fg.jit(lambda x: x + 0, device="cuda")(x)), x)
    long = np.arange(20_000.0)[::2]
    np.testing.assert_array_equal(
        np.asarray(fg.jit(lambda x, y: x[::1000] + y, device="cuda")(long, 1)), long[::1000] + 1
    )
    with pytest.raises(DtypeError):
        put(np.array(["a"]))


def test_devices(gpus: Any) -> None:
    found = fg.devices()
    assert [d.name for d in found] == ["cpu", "cuda:0", "cuda:1"]
    assert found[0].memory > 2**28 and found[0].arch and found[1].arch == "sm_80"
    assert repr(found[1]) == "Device('cuda:0', 'interpreter of PTX', 'sm_80', 1.0 GiB)"
    assert fg.jit(np.sin, device=found[2])(X).device == "cuda:1"
    assert fg.devices("cpu") == found[:1] and fg.devices("cuda") == found[1:]
    for kind in ("gpu", "cuda:0", "", 0, found[0], ["cuda"]):
        with pytest.raises(ParameterError, match="devices: kind is 'cpu' or 'cuda', got"):
            fg.devices(kind)


# -- arrays of other libraries


def test_an_array_of_another_library_is_used_where_it_lies(gpu: Any) -> None:
    x = Borrowed(gpu, X)
    sent = gpu.sent
    there = put(x)
    assert there.address == x.__cuda_array_interface__["data"][0] and gpu.sent == sent
    np.testing.assert_array_equal(np.asarray(fg.jit(lambda x: x * 2, device="cuda")(x)), X * 2)


@pytest.mark.parametrize("change", [lambda x: x.T, lambda x: x[::-1, ::2], lambda x: x[1:, 1:], lambda x: x[:, :0]])
def test_other_layouts_are_copied(gpu: Any, change: Any) -> None:
    there = put(Borrowed(gpu, X, change))
    np.testing.assert_array_equal(np.asarray(there), change(X))
    assert there.address % 16 == 0


class OnGpu(Borrowed):
    """As CuPy's: NumPy does not get it."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


class OnSecondGpu(OnGpu):
    """As that of a library with DLPack alone."""

    __cuda_array_interface__ = property()  # no attribute

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise AssertionError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


@pytest.mark.parametrize("kind", [Borrowed, OnGpu, OnSecondGpu])
def test_code_for_the_cpu_says_that_an_array_is_on_a_gpu(gpu: Any, kind: Any) -> None:
    x = kind(gpu, X)
    for use in (
        lambda: fg.jit(lambda x: x * 2)(x),
        lambda: fg.jit(lambda x: x * 2, lowering="numba")(x),
        lambda: fg.jit(lambda a, x: a * 2)(put(X), x),
        lambda: fg.grad(lambda x: np.sum(x))(x),
        lambda: fg.vmap(np.sin)(x),
        lambda: fg.numpy.sin(x),
        lambda: fg.jit(lambda y: fg.numpy.add(y, x))(X),
        lambda: fg.numpy.add(put(X), x),
    ):
        with pytest.raises(ArgumentError, match=f"{kind.__name__} in the memory of a GPU") as e:
            use()
        assert e.value.hint is not None
        assert "jit(f, device='cuda')" in e.value.hint and "fg.device_get(x)" in e.value.hint


@pytest.mark.parametrize("kind", [Borrowed, OnGpu])
def test_an_array_of_another_library_comes_back(gpu: Any, kind: Any) -> None:
    for change in (lambda x: x, lambda x: x.T, lambda x: x[::-1, ::2]):
        x = kind(gpu, X, change)
        (back,) = fg.device_get((x,))
        assert type(back) is np.ndarray and back.tolist() == change(X).tolist()
        assert type(fg.device_put(x, "cpu")) is fg.Array and fg.device_put(x, "cpu").tolist() == change(X).tolist()
        here = fg.jit(lambda x: x * 2, device="cpu")(x)
        assert type(here) is fg.Array and here.tolist() == (change(X) * 2).tolist()


def test_an_error_of_another_librarys_array_stays() -> None:
    class Broken:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fg.jit(lambda x: x * 2)(Broken())


def test_dlpack(gpu: Any) -> None:
    class Capsule:
        def __dlpack__(self, **kwargs: Any) -> Any:
            return X.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    np.testing.assert_array_equal(np.asarray(put(Capsule())), X)
    x = put(X)
    assert x.__dlpack_device__() == (2, 0)
    given = x.__cuda_array_interface__
    assert given["shape"] == (3, 4) and given["typestr"] == "<f8" and given["strides"] is None
    assert given["data"] == (x.address, False) and given["version"] == 3
    np.testing.assert_array_equal(np.frombuffer(gpu.read(given["data"][0], 96)).reshape(3, 4), X)


def test_jitted_functions_switched_off() -> None:
    with fg.disable_jit():
        x = put(X)
        np.testing.assert_allclose(np.asarray(np.mean(x + X[0], axis=0)), np.mean(X + X[0], axis=0), rtol=1e-14)


def test_loops_of_values() -> None:
    x = put(X)
    for f in (
        lambda x: lax.scan(lambda c, r: (c + r, c * r), np.zeros(4), x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2.0 + i, x),
        lambda x: lax.while_loop(lambda c: np.sum(c) < 100.0, lambda c: c + 1.0, x),
        lambda x: lax.cond(x[0, 0] > 0, np.sin, np.cos, x),
        lambda x: fg.vmap(lambda r: lax.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, np.sum(abs(r)) + 0.1))(x),
    ):
        for a, b in zip(fg.tree.leaves(f(x)), fg.tree.leaves(f(X)), strict=True):
            assert type(a) is DeviceArray
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-14)


def test_functions_that_are_not_there_say_so() -> None:
    for call in (np.median, np.unique, np.fft.fft):
        with pytest.raises(UnsupportedError, match="is not supported on cuda:0") as e:
            call(put(X))
        assert "np.asarray(x)" in str(e.value)


def test_the_stages_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUNCGRAD_DUMP", str(tmp_path))
    fg.jit(lambda x: np.sin(x) * 0.125, device="cuda")(X)
    (place,) = tmp_path.iterdir()
    assert sorted(p.name for p in place.iterdir()) == ["kernels.ptx", "kernels.txt", "program.txt", "simplified.txt"]


def test_arrays_of_a_device_are_found_in_lists_that_contain_themselves() -> None:
    x: list[Any] = [1.0]
    x.append(x)
    assert not has_device_array(x, {"y": (x, [x])})
    x.append((put(X),))
    assert has_device_array([x], {}) and has_device_array([], {"y": x})
