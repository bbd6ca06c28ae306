"""docs/numerics.md, from what was measured and the text of template.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.numerics import data, sums
from tests.numerics.measure import COMPARED, exact_functions, functions
from tests.numerics.oracles import BOUNDS

TEMPLATE = Path(__file__).with_name("template.md")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
CODES = {"fma": "F", "plain": "N"}


def write() -> None:
    PAGE.write_text(generated(data.load()), "utf-8")


def generated(found: dict[str, Any]) -> str:
    """The page."""
    measured, machine = found["functions"], found["machine"]
    names = [name for name in functions() if name in measured]
    parts = {
        "exact": ", ".join(f"`{name}`" for name in exact_functions()),
        "numpy": machine["numpy"],
        "scipy": machine["scipy"],
        "libc": machine["libc"],
        "vector": str(machine["vector_bytes"]),
        "float64": errors(names, measured, "float64"),
        "float32": errors(names, measured, "float32"),
        "notes": "\n".join(notes(names, measured)),
        "compared": f"{COMPARED:,}",
        "rows": str(sums.ROWS),
        "totals": of_sums(found["sums"], [op for op in sums.OPS if "cum" not in op and "@" not in op]),
        "running": of_sums(found["sums"], [op for op in sums.OPS if "cum" in op]),
        "products": of_sums(found["sums"], [op for op in sums.OPS if "@" in op]),
        "where": where(names, measured),
    }
    text = TEMPLATE.read_text("utf-8")
    for key, value in parts.items():
        text = text.replace(f"@@{key}@@", value)
    assert "@@" not in text
    return wrapped(text)


def wrapped(text: str) -> str:
    """Paragraphs that a list has made too long, in lines of at most 120 characters."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if max(map(len, lines)) > 120 and not re.match(r"[|`]", paragraph):
            lines, words = [""], paragraph.split()
            for word in words:
                if len(lines[-1]) + 1 + len(word) > 120:
                    lines.append(word)
                else:
                    lines[-1] = f"{lines[-1]} {word}".strip()
        out.append("\n".join(lines))
    return "\n\n".join(out)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def errors(names: Sequence[str], measured: dict[str, Any], dtype: str) -> str:
    head = ["function", "bound", "FMA", "no FMA", "eager", "inputs", "reference", "jit − eager", "equal"]
    rows = []
    for name in names:
        r = data.best(measured[name][dtype])
        codes = [ulps(r[code]["ulp"]) for code in ("fma", "plain", "eager")]
        apart = r["apart"]
        equal = "all" if apart["ulp"] == 0 else f"{min(100 * apart['equal'], 99.9):.1f} %"
        rows.append(
            [name, f"{BOUNDS[name]:.0f}", *codes, inputs(r), f"{r['oracle']:.0e}", ulps(apart["ulp"], 0), equal]
        )
    return table(head, rows)


def ulps(error: float, digits: int = 3) -> str:
    return f"{error:.{digits}f}" if error < 1e4 else f"{error:.1e}"


def inputs(record: dict[str, Any]) -> str:
    return "all" if record["inputs"] == 1 << 32 else f"{record['inputs'] / 1e6:.0f} M"


def notes(names: Sequence[str], measured: dict[str, Any]) -> Iterable[str]:
    """What deserves a word: functions of NumPy and SciPy that are further off than any of ours may be."""
    far = [
        f"`{name}` ({dtype}, {ulps(r['eager']['ulp'], 1)} ulp at {', '.join(map(decimal, r['eager']['at']))})"
        for name in names for dtype, r in measured[name].items() if r["eager"]["ulp"] > 4
    ]  # fmt: skip
    if far:
        yield (
            "Further off than 4 ulp without `jit`, where they are functions of NumPy and SciPy: " + ", ".join(far) + "."
        )


def decimal(at: str) -> str:
    return repr(float.fromhex(at))


def of_sums(found: dict[str, Any], ops: Sequence[str]) -> str:
    columns = [(dtype, who) for dtype in ("float32", "float64") for who in sums.WHO]
    head = ["sum", "data", "n", *[f"{dtype} {who}" for dtype, who in columns]]
    rows = [
        [op, kind, f"10{'²⁴⁶'[i]}", *[f"{found[sums.key(op, kind, n, d)][who]:.2g}" for d, who in columns]]
        for op in ops for kind in sums.KINDS for i, n in enumerate(sums.LENGTHS)
    ]  # fmt: skip
    return table(head, rows)


def where(names: Sequence[str], measured: dict[str, Any]) -> str:
    rows = []
    for name in names:
        for dtype in ("float64", "float32"):
            r = data.best(measured[name][dtype])
            cells = [", ".join(map(short, r[code]["at"])) or "everywhere" for code in CODES]
            rows.append([name, dtype, *[f"{r[c]['ulp']:.4f} | {cell}" for c, cell in zip(CODES, cells, strict=True)]])
    return table(["function", "dtype", "F: ulp", "at", "N: ulp", "at"], rows)


def short(at: str) -> str:
    """A hexadecimal float without the zeros at its end."""
    return re.sub(r"\.?0*p", "p", at) if "." in at else at
