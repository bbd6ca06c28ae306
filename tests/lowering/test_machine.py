"""LLVM text to machine code: what is accepted, what is refused, and that nothing stays behind."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path

import pytest

from funcgrad.base.errors import ProgramError
from funcgrad.lowering.machine import Host, Library, compile_object, header, host, load, overridden

TWICE = "define i64 @twice(i64 %x) {\n  %y = shl i64 %x, 1\n  ret i64 %y\n}\n"
THROUGH = "declare i64 @other(i64)\ndefine i64 @through(i64 %x) {\n  %y = call i64 @other(i64 %x)\n  ret i64 %y\n}\n"


def function(library: Library, name: str) -> ctypes._CFunctionType:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library[name])


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("level", [0, 1, 2])
def test_text_becomes_a_function(level: int) -> None:
    library = load([compile_object(header() + TWICE, level)], ["twice"])
    assert function(library, "twice")(21) == 42


def test_the_same_text_gives_the_same_bytes() -> None:
    assert compile_object(header() + TWICE) == compile_object(header() + TWICE)


def test_objects_refer_to_each_other_and_to_imports() -> None:
    twice = load([compile_object(header() + TWICE, 0)], ["twice"])
    through = compile_object(header() + THROUGH, 1)
    library = load([through], ["through"], {"other": twice["twice"]})
    assert function(library, "through")(4) == 8
    other = compile_object(header() + TWICE.replace("twice", "other"), 0)
    assert function(load([through, other], ["through"]), "through")(5) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("define i64 @f( {", "expected type"),
        ("define i64 @f() {\n  ret i64 %x\n}\n", "undefined value"),
        ("define i64 @f() {\n  %x = add i64 %x, 1\n  ret i64 %x\n}\n", "Only PHI nodes"),
    ],
)
def test_malformed_text_raises(text: str, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        compile_object(header() + text)


def test_what_cannot_be_linked_raises(capfd: pytest.CaptureFixture[str]) -> None:
    code = compile_object(header() + TWICE, 0)
    for objects, exports in (([b"junk"], ["f"]), ([code], ["absent"])):
        with pytest.raises(ProgramError, match="cannot load"):
            load(objects, exports)
    with pytest.raises(ProgramError):
        load([compile_object(header() + THROUGH, 0)], ["through"])


def test_the_host_can_be_overridden() -> None:
    before = host()
    assert before.vector_bytes in (16, 32, 64)
    with overridden("x86-64-v3", "+avx2,+fma") as other:
        assert (other.vector_bytes, other.fma) == (32, True) == (host().vector_bytes, host().fma)
        if before.triple.startswith("x86_64"):
            assert compile_object(header() + TWICE)
    with overridden("x86-64") as oldest:
        assert oldest.vector_bytes == 16
        assert oldest.fma == before.triple.startswith(("aarch64", "arm64"))
    assert host() is before


def test_features_are_whole_words() -> None:
    assert not Host("x86_64", "any", "+avx512fp16,-avx512f,+fma4").has("avx512f")
    assert not Host("x86_64", "any", "+fma4").fma


def test_threads_compile_at_the_same_time() -> None:
    results: list[int] = []

    def work(k: int) -> None:
        text = f"define i64 @f(i64 %x) {{\n  %y = add i64 %x, {k}\n  ret i64 %y\n}}\n"
        library = load([compile_object(header() + text)], ["f"])
        results.append(function(library, "f")(0) - k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [0] * 16


def grows(cycles: int) -> int:
    """Bytes by which the process grows over compiled, loaded and dropped modules."""

    def cycle(k: int) -> None:
        text = f"define i64 @f(i64 %x) {{\n  %y = add i64 %x, {k}\n  ret i64 %y\n}}\n"
        library = load([compile_object(header() + text, 0)], ["f"])
        assert function(library, "f")(1) == k + 1

    for k in range(100):
        cycle(k)
    gc.collect()
    before = resident()
    for k in range(cycles):
        cycle(k)
    gc.collect()
    return resident() - before


def test_dropped_libraries_leave_nothing() -> None:
    assert grows(300) < 1 << 20


@pytest.mark.slow
def test_many_dropped_libraries_leave_nothing() -> None:
    assert grows(10_000) < 1 << 20
