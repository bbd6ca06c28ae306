"""What representative kernels take of a GPU (registers, spills, stack, shared memory), against a golden table.

A difference is either a fault or an improvement; after reading it, ``FUNCGRAD_UPDATE_GOLDEN=1 pytest -m cuda -n 0
tests/cuda/test_resources.py`` writes the table anew, here and, some lines of it, in docs/cuda.md.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering.cuda import ptx
from funcgrad.lowering.cuda.executable import cuda_module, ptx_of
from funcgrad.lowering.cuda.ptx import FEW, find_ptxas, resources
from funcgrad.lowering.simplify import simplify
from tests.cuda.against_cpu import compared
from tests.cuda.representative import FUSED, KERNELS, F, adam
from tests.cuda.resources import GOLDEN, HEAD, compiled_for_all, main, table, texts, title
from tests.cuda.test_registry import ELEMENTWISE, OPS, SMOOTH, applied, arity
from tests.ops.samples import SAMPLES
from tests.ptx.static import Static

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda.md"
LINES = re.compile(re.escape(HEAD) + r"((?:\|.*\n)*)")
UPDATE = os.environ.get("FUNCGRAD_UPDATE_GOLDEN", "0") not in ("", "0")
MORE = {"pow", "erfinv", "sinc, gradient", "sin, gradient", "tan, gradient"}
"""Elementwise functions of float32 whose kernels would spill with 32 registers, on some architecture."""
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="NVIDIA's assembler is not installed")


def shown() -> list[str]:
    """The lines of the table that the page has."""
    found = LINES.search(PAGE.read_text("utf-8"))
    assert found is not None
    return found[1].splitlines(True)


@needs_ptxas
@pytest.mark.cuda
def test_the_table_of_resources() -> None:
    whole = table()
    if UPDATE:
        GOLDEN.write_text(whole)
        lines = {title(line): line for line in whole.splitlines(True)}
        some = HEAD + "".join([lines[title(line)] for line in shown()])
        PAGE.write_text(LINES.sub(lambda _: some, PAGE.read_text("utf-8")), "utf-8")
    expected = GOLDEN.read_text()
    assert whole == expected, "".join(difflib.unified_diff(expected.splitlines(True), whole.splitlines(True)))


def test_the_page_shows_some_lines_of_the_table() -> None:
    kept = GOLDEN.read_text().splitlines(True)
    assert 8 <= len(shown()) <= 14
    assert [line for line in kept if line in shown()] == shown(), "docs/cuda.md shows other lines"
    assert f"\n{len(kept) - 2} kernels" in PAGE.read_text("utf-8")


@needs_ptxas
def test_the_command_prints_lines_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adam", "transpose"]) == 0
    lines = capsys.readouterr().out.splitlines(True)
    assert "".join(lines[:2]) == HEAD and [title(line) for line in lines[2:]] == ["adam", "transpose"]
    assert set(lines) <= set(GOLDEN.read_text().splitlines(True))


def test_the_command_without_an_assembler_or_with_an_odd_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ptx, "find_ptxas", lambda: None)
    assert main(["adam"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "nvidia-cuda-nvcc<13.1" in said.err and str(GOLDEN) in said.err
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "there is no program 'nothing'; they are 'multiply and add'," in capsys.readouterr().err


def golden() -> list[tuple[str, list[int]]]:
    """The table: names, and the numbers of a kernel."""
    lines = [line.strip("|\n ").split(" | ") for line in GOLDEN.read_text().splitlines()[2:]]
    return [(name, [max(map(int, c.split())) for c in cells]) for name, *cells in lines]


def test_the_table_is_within_its_bounds() -> None:
    """Nothing spills or has a stack; with fused elementwise kernels as many threads run as a GPU has room for."""
    kept = golden()
    assert {name.split(": ")[0] for name, _ in kept} == set(KERNELS) and len(kept) >= 25
    for name, (*registers, spills, stack, shared) in kept:
        assert spills == stack == 0 and shared <= 48 * 1024, name
        assert max(registers) <= 96, name
        if name in {*FUSED, "sine"}:
            assert max(registers) <= FEW, name


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_load_16_bytes_through_the_read_only_cache(name: str) -> None:
    for arch, text in texts(name).items():
        code = Static(text, "k0")
        loads = code.opcodes("ld.global")
        assert loads and set(loads) <= {"ld.global.nc.v2.b64", "ld.global.nc.v4.b32"}, (arch, loads)
        assert not code.opcodes("st.global") - code.opcodes("st.global.v2.b64", "st.global.v4.b32"), arch
        assert not code.opcodes("local", "div.s64", "div.u64", "rem.s64", "rem.u64"), arch


@needs_ptxas
@pytest.mark.cuda
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kernels_take_few_registers(name: str) -> None:
    """Whatever they compute: as many as they need only if they would spill with less."""
    dtype = next(d for d in (F, np.int32, bool) if np.dtype(d).kind in OPS[name].dtypes)
    x = [np.ones(4096, dtype)] * arity(name)
    pull = lambda *x: fg.vjp(applied(name), *x[:-1])[1](x[-1])
    smooth = {f"{name}, gradient": (pull, [*x, x[0]])} if name in SMOOTH else {}
    for what, (f, args) in {name: (applied(name), x), **smooth}.items():
        for arch, text in compiled_for_all(f, args).items():
            r = resources(text, arch)["k0"]
            assert r.spills == r.stack == 0 and (r.registers <= FEW or {name, what} & MORE), (what, arch, r)


def series(x: Any, n: int = 50) -> Any:
    return sum([np.sin(x * k) / k for k in range(1, n)])


def eliminated(x: Any) -> Any:
    """Inverses of 4 x 4 matrices, written out."""
    a = [[x[..., i, j] for j in range(4)] for i in range(4)]
    for k in range(4):
        a[k] = [v / a[k][k] for v in a[k]]
        for i in {*range(4)} - {k}:
            a[i] = [u - a[i][k] * w for u, w in zip(a[i], a[k], strict=True)]
    return np.stack([np.stack(r, -1) for r in a], -2)


def crossed(x: Any, n: int = 80) -> Any:
    """Results that need pairs of values which lie far apart."""
    ys = [np.sqrt(x + k) for k in range(n)]
    return [a * b for a, b in zip(ys, reversed(ys), strict=True)]


N = 1032
P = np.linspace(0.1, 3.0, N)
MANY: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sines": (lambda x: [np.sin(x * k) for k in range(32)], (P,)),
    "sines, f32": (lambda x: [np.sin(x * F(k)) for k in range(8)], (P.astype(F),)),
    "exponentials": (lambda x: [np.exp(x * k) for k in range(32)], (P,)),
    "quotients": (lambda x: [(x * k + 1) / (x + k) for k in range(32)], (P,)),
    "a series": (series, (P,)),
    "its gradient": (fg.grad(lambda x: np.sum(series(x, 20))), (P,)),
    "sums": (lambda x: [np.sum(x * k) for k in range(64)], (P,)),
    "sums of sines": (lambda x: [np.sum(np.sin(x * k)) for k in range(16)], (P,)),
    "sums and values": (lambda x: [*[np.sum(x * k) for k in range(20)], np.sin(x), x * 2.0], (P,)),
    "sums of columns": (lambda x: [np.sum(x * k, axis=0) for k in range(24)], (P.reshape(-1, 24),)),
    "Adam of 12 leaves": (
        lambda *x: [adam(*x[k::12]) for k in range(12)],
        tuple([P.astype(F) + F(k) for k in range(48)]),
    ),
    "elimination": (eliminated, (np.eye(4) + 0.1 * P[:512].reshape(-1, 4, 4),)),
    "far apart": (crossed, (P,)),
    "far apart, f32": (crossed, (P.astype(F),)),
}
"""Fused bodies that hold so much that registers run out, if it is not arranged well."""


@needs_ptxas
@pytest.mark.cuda
@pytest.mark.parametrize("name", MANY)
def test_no_kernel_of_much_spills(name: str) -> None:
    f, args = MANY[name]
    for arch, text in compiled_for_all(f, args).items():
        for k, r in resources(text, arch).items():
            assert r.spills == r.stack == 0, (arch, k, r)


@pytest.mark.cuda
@pytest.mark.parametrize("name", MANY)
def test_values_of_kernels_of_much(name: str) -> None:
    f, args = MANY[name]
    compared(f, args, scale=1e3)


@needs_ptxas
@pytest.mark.parametrize("name", ["power, f64", "sine"])
def test_a_bound_of_registers_goes_where_it_makes_spills(name: str) -> None:
    text = texts(name)["sm_80"]
    assert text.count(f".maxnreg {FEW}\n") == 1
    report = resources(text, "sm_80")["k0"]
    assert report.spills == 0 and (report.registers > FEW) == (name == "power, f64")
    free = ptx.unbounded(text)
    assert "maxnreg" not in free and len(free) == len(text) - len(f".maxnreg {FEW}\n")
    assert ptx.unbounded(text, {"k1"}) == text and ptx.unbounded(text, {"k0"}) == free
    assert (ptx.compile_cubin(text, "sm_80") == ptx.compile_cubin(free, "sm_80")) == (name == "power, f64")


@needs_ptxas
@pytest.mark.cuda
@pytest.mark.parametrize("name", SAMPLES)
def test_no_kernel_of_a_sample_spills(name: str) -> None:
    """For one architecture; those of control flow may have a stack."""
    for s in SAMPLES[name][::4]:
        try:
            module = cuda_module(simplify(fg.make_program(s.function)(*s.args)))
        except fg.errors.UnsupportedError:
            continue
        for r in resources(ptx_of(module, "sm_80"), "sm_80").values():
            assert r.spills == r.stack == 0 and r.registers <= 128, s
