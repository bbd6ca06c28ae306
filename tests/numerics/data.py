"""What was measured, in a file."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from funcgrad.lowering.stages import this_target

FILE = Path(__file__).with_name("measured.json")


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"functions": {}, "sums": {}}


def best(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the figures of all floats, where they were tried, in the place of those of a sample."""
    return record | record.get("every", {})


def machine() -> dict[str, Any]:
    """What the results of NumPy and SciPy depend on."""
    libc = " ".join(platform.libc_ver())
    return {
        "numpy": np.__version__, "scipy": scipy.__version__, "libc": libc, "vector_bytes": this_target().vector_bytes,
    }  # fmt: skip


def keep(name: str = "", dtype: Any = None, record: Any = None, sums: Any = None) -> None:
    """Put a record, or the errors of sums, into the file; several processes may do so."""
    lock = os.open(FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = load()
        found["machine"] = machine()
        if sums is not None:
            found["sums"].update(sums)
        else:
            found["functions"].setdefault(name, {})[np.dtype(dtype).name] = record
        write(found)
    finally:
        os.close(lock)


def write(found: dict[str, Any]) -> None:
    scratch = FILE.with_suffix(".part")
    scratch.write_text(text(found), "utf-8")
    scratch.replace(FILE)


def text(found: dict[str, Any]) -> str:
    """One line for each record, so that differences can be read."""
    lines = ["{", f'"machine": {json.dumps(found["machine"])},', '"functions": {']
    records = [
        f'"{name}": {{\n' + ",\n".join(f' "{d}": {json.dumps(r)}' for d, r in sorted(both.items())) + "\n}"
        for name, both in sorted(found["functions"].items())
    ]
    lines += [",\n".join(records), "},", '"sums": {']
    lines += [",\n".join(f'"{key}": {json.dumps(v)}' for key, v in found["sums"].items()), "}", "}", ""]
    return "\n".join(lines)
