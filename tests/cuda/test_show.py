"""What can be seen of the kernels of a GPU without one: their PTX, and what they take of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.errors import ArgumentError, ParameterError, UnsupportedError
from funcgrad.lowering.cuda.ptx import Resources, find_ptxas, parse_report
from tests.test_docs import DOCS, check

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="NVIDIA's assembler is not installed")
X = np.ones((8, 70))

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k0' for 'sm_80'
ptxas info    : Function properties for k0
    64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 68 registers, used 1 barriers, 64 bytes cumulative stack size, 192 bytes smem, 372 bytes cmem[0]
ptxas info    : Compiling entry function 'k1' for 'sm_80'
ptxas info    : Function properties for k1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 9 registers, used 0 barriers, 368 bytes cmem[0]
"""


def test_a_report_of_the_assembler() -> None:
    assert parse_report(REPORT) == {"k0": Resources(68, 20, 64, 192), "k1": Resources(9, 0, 0, 0)}


def test_ptx_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    show = lambda **kwargs: fg.show(np.sin, X, stage="ptx", **kwargs)
    assert ".target sm_80" in show() and ".visible .entry k0(" in show()
    assert ".target sm_90" in show(arch="sm_90") and ".target sm_75" in show(arch="sm_75")
    assert ".target sm_90" in show(arch="sm_120")  # which runs it
    monkeypatch.setenv("FUNCGRAD_CUDA_ARCH", "sm_89")
    assert ".target sm_89" in show()
    for arch in (
        "sm_35",
        "sm_76",
        "sm_999",
        "sm_090",
        "sm_90a",
        "90",
        "sm_",
        "",
        "compute_80",
        90,
        0,
        np.array(["sm_80"]),
    ):
        with pytest.raises(ParameterError, match=r"arch=.*: no GPU that CUDA 13 compiles for"):
            show(arch=arch)
    monkeypatch.setenv("FUNCGRAD_CUDA_ARCH", "sm_999")
    with pytest.raises(ParameterError, match="FUNCGRAD_CUDA_ARCH='sm_999': no GPU"):
        show()
    with pytest.raises(ArgumentError, match="arch is for the stages of a GPU"):
        fg.show(np.sin, X, stage="asm", arch="sm_80")


def test_exact_programs_are_not_contracted() -> None:
    assert "fma" not in fg.show(lambda x, y: x * y + 1.0, X, X, stage="ptx")


def test_a_dtype_without_form_is_named() -> None:
    f, x = lambda x: x + 1, X.astype(np.float16)
    for look in (
        lambda: fg.show(f, x, stage="ptx"),
        lambda: fg.show(f, x, stage="cubin"),
        lambda: fg.jit(f, device="cuda").lower(x).as_text("ptx"),
    ):
        with pytest.raises(UnsupportedError, match="add of float16 has no CUDA form yet") as e:
            look()
        assert e.value.hint == "the CPU runs it: stage='kernels' shows how"
    assert "add" in fg.show(f, x, stage="kernels")


def test_a_jitted_function_for_a_device_and_its_stages() -> None:
    f = fg.jit(lambda x: np.sqrt(x), device="cuda")
    text = fg.show(f, X, stage="ptx")
    assert "sqrt.rn.f64" in text and f.lower(X).as_text("ptx") == text
    with pytest.raises(UnsupportedError, match="convert of complex128 has no CUDA form yet"):
        fg.show(lambda x: np.real(np.exp(1j * x)), X, stage="ptx")


@needs_ptxas
def test_the_table_of_resources_has_every_kernel_and_the_users_lines() -> None:
    def f(x):
        y = x @ x.T
        return lax.fori_loop(0, 3, lambda i, c: c @ y, x[:, :8]), np.sum(x, axis=1)

    table = fg.show(f, X, stage="cubin", arch="sm_90").splitlines()
    assert table[0] == "kernel  blocks  threads  registers  spills B  stack B  shared B  lines"
    rows = {row.split()[0]: row.split() for row in table[1:]}
    assert list(rows) == [f"k{i}" for i in range(len(rows))]
    for row in rows.values():
        blocks, threads, registers, spills, stack, shared = map(int, row[1:7])
        assert (
            blocks > 0 and threads == 256 and 0 < registers < 256 and spills == stack == 0 and 0 <= shared <= 48 * 1024
        )
        assert row[7].startswith("test_show.py:")
    lines = {line.strip(",") for row in rows.values() for line in row[7:]}
    first = f.__code__.co_firstlineno
    assert lines == {f"test_show.py:{first + 1}", f"test_show.py:{first + 2}"}


def test_the_page_runs_with_a_gpu(gpu: Any, tmp_path: Path) -> None:
    launched = len(gpu.launched)
    check((DOCS / "cuda.md").read_text("utf-8"), tmp_path)
    assert len(gpu.launched) > launched


def test_each_block_of_the_page_runs_alone(gpu: Any, tmp_path: Path) -> None:
    page = (DOCS / "cuda.md").read_text("utf-8")
    alone = re.findall(r"```python[^`]*```\n(?:\n```text[^`]*```\n)?", page)
    assert len(alone) == page.count("```python") >= 6
    for number, block in enumerate(alone):
        (tmp_path / str(number)).mkdir()
        check(block, tmp_path / str(number))


@needs_ptxas
def test_newer_gpus_have_machine_code_of_their_own() -> None:
    assert "k0" in fg.show(lambda x: x + 1, X, stage="cubin", arch="sm_120")
