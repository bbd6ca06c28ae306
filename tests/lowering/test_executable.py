"""The interface of what jit runs."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering import executable


def test_an_executable_runs_its_program() -> None:
    program = fg.make_program(lambda x: (np.sin(x), x.T))(np.ones((2, 3)))
    run = executable(program)
    x = np.arange(6.0).reshape(2, 3)
    y, t = run([x])
    np.testing.assert_array_max_ulp(y, np.sin(x), 4)
    assert np.array_equal(t, x.T) and t.flags.c_contiguous
    assert executable(program) is run


def test_a_nested_jit_runs_through_its_executable() -> None:
    inner = fg.jit(lambda x: x * 2)
    outer = fg.jit(lambda x: inner(x) + inner(x))
    assert outer(np.ones(2)).tolist() == [4, 4]


def test_machine_code_that_writes_behind_its_arena_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering: Any = sys.modules["funcgrad.lowering.executable"]
    emit = lowering.emit

    def short(*args: Any) -> Any:
        module = emit(*args)
        assert module.arena.size >= 64
        return dataclasses.replace(module, arena=dataclasses.replace(module.arena, size=module.arena.size - 64))

    monkeypatch.setattr(lowering, "emit", short)

    def mean_distance(x: Any) -> Any:
        return np.sum(np.sqrt((x - np.sum(x * x) / 3.0) ** 2))

    f = fg.jit(mean_distance)
    for _ in range(3):
        with pytest.raises(fg.errors.ProgramError, match="program mean_distance wrote behind its arena of"):
            f(np.arange(3.0))


def test_the_stages_are_written_to_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUNCGRAD_DUMP", str(tmp_path / "here"))

    def decay(x: Any) -> Any:
        return np.sqrt(x) - 0.25

    fg.jit(decay, donate_argnums=0)(np.ones(3))
    fg.jit(decay)(np.ones(3))
    (place,) = (tmp_path / "here").iterdir()
    assert re.fullmatch(r"decay-[0-9a-f]{8}", place.name)
    texts = {p.name: p.read_text("utf-8") for p in place.iterdir()}
    assert set(texts) == {
        *("program.txt", "simplified.txt", "kernels.txt"),
        *("llvm.ll", "asm.s", "llvm-0in0.ll", "asm-0in0.s"),
    }
    assert texts["program.txt"].startswith("program decay(x: f64[3])") and "sub" in texts["simplified.txt"]
    assert "sqrt" in texts["kernels.txt"] and "define i64 @program(ptr %args)" in texts["llvm.ll"]
    assert "program:" in texts["asm.s"]


def test_parts_of_a_program_in_stages_are_written_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUNCGRAD_DUMP", str(tmp_path))
    lowering: Any = sys.modules["funcgrad.lowering.stages"]
    native = lowering.native_form
    monkeypatch.setattr(lowering, "native_form", lambda e: e.primitive.name != "sqrt" and native(e))
    fg.jit(lambda x: np.sqrt(x + 1.0) * 2.0)(np.ones(3))
    names = sorted([sorted([p.name for p in place.iterdir()]) for place in tmp_path.iterdir()])
    part = ["asm.s", "kernels.txt", "llvm.ll", "simplified.txt"]
    assert names == [part, part, ["kernels.txt", "program.txt", "simplified.txt"]]
