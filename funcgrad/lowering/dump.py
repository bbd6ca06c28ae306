"""The stages of every Program that is made ready to run, as files: ``FUNCGRAD_DUMP=folder``.

In: a Program, and later the text of its machine code. Out: a folder ``NAME-HASH`` with program.txt (as traced),
simplified.txt, kernels.txt, llvm.ll and asm.s (or kernels.ptx); the hash is that of simplified.txt, so that equal
Programs are written once. What runs in stages has a folder for the whole, and one for each part that is machine code.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from funcgrad.core.ir import Program
from funcgrad.lowering.machine import assembly
from funcgrad.lowering.readable import format_kernels


def dump_program(flat: Program, traced: Program | None = None) -> None:
    """Write what can be read of a simplified Program, if FUNCGRAD_DUMP asks for it."""
    place = _folder(flat)
    if place is not None:
        if traced is not None:
            _write(place / "program.txt", str(traced))
        _write(place / "simplified.txt", str(flat))
        _write(place / "kernels.txt", format_kernels(flat))


def dump_module(flat: Program, text: str, level: int, donated: tuple[int, ...]) -> None:
    """Write the machine code of a simplified Program; `donated` tells variants of it apart."""
    place = _folder(flat)
    if place is not None:
        if not (place / "simplified.txt").exists():
            dump_program(flat)
        variant = _variant(donated)
        _write(place / f"llvm{variant}.ll", text)
        _write(place / f"asm{variant}.s", assembly(text, level))


def dump_ptx(flat: Program, text: str, donated: tuple[int, ...]) -> None:
    """Write the kernels of a GPU of a simplified Program."""
    place = _folder(flat)
    if place is not None:
        _write(place / f"kernels{_variant(donated)}.ptx", text)


def _variant(donated: tuple[int, ...]) -> str:
    return "".join([f"-{k}in{i}" for k, i in enumerate(donated) if i >= 0])


def _folder(flat: Program) -> Path | None:
    root = os.environ.get("FUNCGRAD_DUMP", "")
    if not root:
        return None
    name = re.sub(r"[^\w.-]+", "_", flat.name).strip("_")
    return Path(root) / f"{name}-{hashlib.sha256(str(flat).encode()).hexdigest()[:8]}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" * (not text.endswith("\n")), "utf-8")
