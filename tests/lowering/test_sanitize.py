"""FUNCGRAD_SANITIZE=1: planted faults are found and named, nothing else is reported, and results are the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.base.errors import ProgramError
from funcgrad.lowering import blas, bodies, emit, foreign, loops, nests, sanitize, walks
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.registers.cells import Memory
from funcgrad.lowering.registers.emitter import Straight
from funcgrad.lowering.registers.stacks import Handed
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target
from tests.lowering.test_native_ops import same_bits
from tests.sanitize.programs import SAMPLE, I, M, R, X, network, rows, steps


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is checked, as with the variable."""
    monkeypatch.setattr(sanitize, "ON", True)


def program_of(name: str) -> tuple[Any, list[Any]]:
    f, args = SAMPLE[name]
    xs = [np.asarray(a) for a in args]
    return fg.make_program(f)(*xs), xs


@pytest.mark.parametrize("name", SAMPLE)
def test_results_are_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, xs = program_of(name)
    found = Executable(program)(xs)
    monkeypatch.setattr(sanitize, "ON", False)
    expected = Executable(program)(xs)
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", SAMPLE)
def test_without_the_variable_the_text_is_what_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the emitters say to the checks is comments, and the filling of fresh buffers."""
    program = simplify(program_of(name)[0])
    said = emit.emit(program, this_target()).text
    monkeypatch.setattr(sanitize, "ON", False)
    plain = emit.emit(program, this_target()).text
    assert "buffer" not in plain and "touches" not in plain and "memset" not in plain and "@check" not in plain
    lines = [line for line in said.split("\n") if "@llvm.memset" not in line and not line.startswith("  ; ")]
    assert [line.partition(" ; ")[0] for line in lines] == plain.split("\n")


# -- planted faults


def fault(f: Callable[..., Any], *args: Any) -> str:
    """The message of the fault that a call of `f` ends with."""
    xs = [np.asarray(a) for a in args]
    with pytest.raises(ProgramError) as info:
        Executable(fg.make_program(f)(*xs))(xs)
    return str(info.value)


def shifted(method: str, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a method of kernels with loops reach so many elements further."""
    usual = getattr(nests.NestEmitter, method)

    def wrong(self: Any, *args: Any) -> Any:
        return usual(self, *[replace(a, offset=a.offset + by) if isinstance(a, nests.Access) else a for a in args])

    monkeypatch.setattr(nests.NestEmitter, method, wrong)


def test_a_vector_that_is_loaded_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("load", 1, monkeypatch)
    message = fault(lambda x: np.sqrt(x), X[:32])
    assert "of input 0, which has 256 bytes" in message and "load <" in message and "at offset 200" in message
    assert "kernel 0: loop (32,)" in message and "sqrt" in message and "test_sanitize.py" in message


def test_a_vector_that_is_stored_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("store", 1, monkeypatch)
    message = fault(lambda x: np.sqrt(x), X[:32])
    assert "of result 0, which has 256 bytes" in message and "store <" in message


def test_a_vector_that_begins_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("load", -1, monkeypatch)
    assert "at offset -8 of input 0, which has 256 bytes" in fault(lambda x: np.sqrt(x), X[:32])


def test_a_number_that_is_loaded_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("load_one", 1, monkeypatch)
    assert "8 bytes at offset 8 of input 0, which has 8 bytes" in fault(lambda x: x * 2.0, 1.0)


def test_a_number_that_is_stored_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("store_one", 1, monkeypatch)
    assert "8 bytes at offset 8 of result 0, which has 8 bytes" in fault(lambda x: x * 2.0, 1.0)


def test_the_bound_of_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = walks.repeat
    monkeypatch.setattr(walks, "repeat", lambda b, n, c, body: usual(b, n + 1, c, body))
    message = fault(np.cumsum, X)
    assert "at offset 296 of input 0, which has 296 bytes" in message and "walk (37,)" in message


def test_the_bound_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = loops.repeat
    monkeypatch.setattr(loops, "repeat", lambda b, n, c, body: usual(b, n + 1, c, body))
    assert "which has 280 bytes" in fault(lambda x: np.sum(x, axis=1), M)


def test_positions_that_are_not_moved_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nests.NestEmitter, "inside", lambda self, position, last: position)
    wrong = np.array([1, 9, 2])
    assert "of input 0, which has 40 bytes" in fault(lambda x, i: x[i], X[:5], wrong)
    message = fault(lambda x, i: x.at[i].add(1.0, mode="drop"), X[:5], wrong)
    assert "which has 40 bytes" in message and "scatter" in message


def test_a_copy_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "bytes_of", lambda aval: aval.size * aval.dtype.itemsize + 1)
    assert "llvm.memcpy" in fault(rows, R)


def test_an_arena_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = emit.layout
    monkeypatch.setattr(emit, "layout", lambda *args: replace(found := usual(*args), size=found.size - 64))
    message = fault(fg.grad(network), np.ones((40, 50)), np.ones((50, 40)))
    assert "of %arena, which has" in message and "bytes of arena + " in message


def test_memory_of_a_function_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Straight.allocate
    wrong = lambda self, aval: Memory(usual(self, replace(aval, shape=())).pointer, aval)
    monkeypatch.setattr(Straight, "allocate", wrong)
    message = fault(lambda x, i: lax.fori_loop(0, i, lambda k, c: c.at[k % 3].add(1.0), x), X[:3], 5)
    assert "8 bytes at offset 8 of scratch + 0, which has 8 bytes" in message


def test_a_buffer_that_grows_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handed, "reserve", lambda self, count, usual=Handed.reserve: usual(self, self.b.isub(count, 1)))
    monkeypatch.setattr("funcgrad.lowering.registers.stacks.LEAST", 1)
    assert "store" in fault(fg.grad(steps), 1.5)


@pytest.mark.parametrize("key", ["m", "n", "k", "a", "b", "c"])
def test_what_blas_is_told(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(product: Any, usual: Any = blas._gemm) -> Any:
        numbers, flags, call = usual(product)
        return {**numbers, key: numbers[key] + 1}, flags, call

    monkeypatch.setattr(blas, "_gemm", wrong)
    assert "dgemm" in fault(lambda x, y: x @ y, np.ones((40, 50)), np.ones((50, 45)))


def test_what_blas_is_told_of_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(product: Any, usual: Any = blas._gemv) -> Any:
        numbers, flags, call = usual(product)
        return {**numbers, "b": 2}, flags, call

    monkeypatch.setattr(blas, "_gemv", wrong)
    assert "dgemv" in fault(lambda x, y: x @ y, np.ones((300, 270)), np.ones(270))


def test_what_foreign_code_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def f(y: Any) -> Any:
        ran.append(y)
        return np.sort(y)

    def wrong(pointers: Any, usual: Any = sanitize.touches) -> Any:
        return usual([(p, n + 8 if n == 8 * 37 else n) for p, n in pointers])

    monkeypatch.setattr(foreign.sanitize, "touches", wrong)
    message = fault(lambda x: fg.pure_callback(f, fg.ShapeDtypeStruct((37,), np.dtype(float)), x), X)
    assert "@foreign0" in message and "304 bytes at offset 0" in message
    assert not ran


def test_memory_that_was_not_written_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nests.NestEmitter, "store", lambda self, value, a, stride: None)
    program = fg.make_program(lambda x: x * 2.0)(X)
    assert np.all(np.isnan(Executable(program)([X])[0]))


def test_kernels_that_are_timed() -> None:
    """They run without checks, in a module of their own."""
    assert all([k.microseconds > 0 for k in fg.cost(lambda x: rows(x), R)])


def test_a_fault_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call after it reports its own; code without faults is not held to be wrong."""
    with monkeypatch.context() as m:
        m.setattr(nests.NestEmitter, "inside", lambda self, position, last: position)
        run = Executable(fg.make_program(lambda x, i: x.at[i].set(1.0, mode="drop"))(X, I))
        for _ in range(2):
            with pytest.raises(ProgramError, match="reached outside of a buffer"):
                run([X, np.array([99, 1, 2])])
            assert run([X, I])[0][3] == 1.0


def test_through_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted("load", 1, monkeypatch)

    def roots(x: Any) -> Any:
        return np.sqrt(x) + 0.125

    with pytest.raises(ProgramError, match="program roots reached outside of a buffer"):
        fg.jit(roots)(X)


def test_through_a_native_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls do not go through Python."""
    monkeypatch.setattr(nests.NestEmitter, "inside", lambda self, position, last: position)
    f = fg.jit(lambda x, i: x.at[i].set(0.25, mode="drop"))
    for _ in range(3):
        assert f(X, I)[3] == 0.25
    with pytest.raises(ProgramError, match="reached outside of a buffer: 8 bytes at offset 792 of result 0"):
        f(X, np.array([99, 1, 2]))
    assert f(X, I)[3] == 0.25


def test_a_line_that_is_not_understood() -> None:
    of = lambda line: f"define internal void @k0(ptr %p0) #0 {{\nentry:\n  {line}\n  ret void\n}}"
    with pytest.raises(ProgramError, match="do not understand this line: %x = atomicrmw"):
        sanitize.instrumented(of("%x = atomicrmw add ptr %p0, i64 1 monotonic"))
    with pytest.raises(ProgramError, match="nothing says which memory @dgemm touches"):
        sanitize.instrumented(of("call void @dgemm(ptr %p0)"))


def test_pointers_to_a_block_that_has_moved() -> None:
    """What was freed is of no use."""
    lines = ["define i64 @program(ptr %args) {", "  ; is ptr %args 8", "  %p = load ptr, ptr %args"]
    lines += ["  %q = call ptr @realloc(ptr %p, i64 64)", "  store ptr %q, ptr %args", "  ret i64 0", "}"]
    text, _ = sanitize.instrumented("\n".join(lines))
    assert (
        text.index("@check_high_is(ptr %p, i64 0)")
        < text.index("@realloc")
        < text.index("%q.high = add i64 %q.low, 64")
    )
    assert "call void @check_high_is(ptr %q, i64 %q.high)" in text
