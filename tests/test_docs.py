"""Every Python block of the documentation runs, and prints what the page says it prints.

The blocks of one page share a namespace and a temporary directory; each is a file of its own, so the line numbers in
outputs count from the first line of the block:

    ```python                   runs; prints nothing, unless a text block follows
    ```python file=loss.py      the same, as loss.py instead of example.py
    ```python raises=TreeError  raises exactly this class; its message ends the text block
    ```python needs=gpu         runs only where there is one; needs=ptxas: where that program is installed
    ```text                     the output of the Python block before it

After a change of the code or of a page, write the outputs anew, and read the difference before you commit it:

    python -m tests.test_docs [page ...]
"""

from __future__ import annotations

import gc
import io
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import funcgrad as fg
from funcgrad.core.primitive import registry
from funcgrad.lowering.cuda.ptx import find_ptxas

REPO = Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
ERRORS = DOCS / "errors"
LANGUAGES = {"python", "text", "bash"}

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


NEEDS = {"": lambda: True, "gpu": lambda: len(fg.devices()) > 1, "ptxas": find_ptxas}


class PageError(AssertionError):
    """A page that is not what it says."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where its body lies in the page, and the words behind the fence."""

    language: str
    body: str
    start: int
    end: int
    line: int
    options: dict[str, str] = field(default_factory=dict)


def pages() -> list[Path]:
    """All pages, the short ones at the top first."""
    return [REPO / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")] + sorted(DOCS.rglob("*.md"))


def page_name(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page in order."""
    for found in FENCE.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        words = found["info"].split()
        if found["indent"] or not words or words[0] not in LANGUAGES:
            raise PageError(f"line {line}: a block is one of {', '.join(sorted(LANGUAGES))}, and not indented")
        options = dict(word.split("=", 1) for word in words[1:])
        yield Block(words[0], found["body"], found.start("body"), found.end("body"), line, options)


def outputs(page: str, folder: Path) -> Iterator[tuple[Block, Block | None, str]]:
    """Run a page: every Python block, the text block that belongs to it, and what it printed."""
    found = list(blocks(page))
    module = types.ModuleType("example")
    sys.modules["example"] = module
    primitives = dict(registry)
    work = folder / "work"
    work.mkdir()
    try:
        for i, block in enumerate(found):
            if block.language == "text" and (i == 0 or found[i - 1].language != "python"):
                raise PageError(f"line {block.line}: a text block without a Python block before it")
            if block.language == "python" and NEEDS[block.options.get("needs", "")]():
                text = found[i + 1] if i + 1 < len(found) and found[i + 1].language == "text" else None
                file = folder / str(i) / block.options.get("file", "example.py")
                with chdir(work):
                    yield block, text, run(block, file, module.__dict__)
    finally:
        del sys.modules["example"]
        fg.config.results = "array"
        registry.clear()
        registry.update(primitives)


def run(block: Block, file: Path, namespace: dict[str, Any]) -> str:
    """What a block prints, with the error that it is expected to raise at the end."""
    file.parent.mkdir()
    file.write_text(block.body, "utf-8")
    printed = io.StringIO()
    expected = block.options.get("raises")
    with redirect_stdout(printed):
        try:
            exec(compile(block.body, str(file), "exec"), namespace)
        except Exception as error:
            if type(error).__name__ != expected:
                raise
            print(f"{expected}: {error}")
        else:
            if expected:
                raise PageError(f"line {block.line}: {expected} was not raised")
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def check(page: str, folder: Path) -> None:
    """Raise for a page that prints something else than it says."""
    for block, text, printed in outputs(page, folder):
        if text is None:
            assert not printed, f"line {block.line}: prints, but no text block follows:\n{printed}"
        else:
            assert printed == text.body, f"line {text.line}: the output is\n{printed}"


def updated(page: str, folder: Path) -> str:
    """The page with the text blocks that it should have."""
    for _, text, printed in reversed(list(outputs(page, folder))):
        if text is not None:
            page = page[: text.start] + printed + page[text.end :]
    return page


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as the usual viewers make them."""
    titles = HEADING.findall(FENCE.sub("", page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", pages(), ids=page_name)
def test_the_page_runs(path: Path, tmp_path: Path) -> None:
    gc.collect()  # or garbage of other tests is collected at the recursion limit, where no finalizer can run
    gc.freeze()
    check(path.read_text("utf-8"), tmp_path)
    gc.unfreeze()


@pytest.mark.parametrize("path", [*pages(), REPO / "CHANGELOG.md"], ids=page_name)
def test_links_lead_somewhere(path: Path) -> None:
    page = path.read_text("utf-8")
    for link in LINK.findall(FENCE.sub("", page)):
        target, _, anchor = link.partition("#")
        if "://" in target or "NNNN" in target:
            continue
        file = path.parent / target if target else path
        assert file.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(file.read_text("utf-8")), f"{link}: no such heading"


def test_every_page_can_be_reached() -> None:
    seen: set[Path] = set()
    waiting = [REPO / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix != ".md" or not path.is_file():
            continue
        seen.add(path)
        links = LINK.findall(FENCE.sub("", path.read_text("utf-8")))
        waiting += [(path.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link]
    assert set(pages()) <= seen, [page_name(path) for path in set(pages()) - seen]


# Error classes.


def test_every_error_has_a_page_and_every_page_an_error() -> None:
    assert {path.stem for path in ERRORS.glob("*.md")} - {"index"} == set(fg.errors.__all__)


@pytest.mark.parametrize("name", fg.errors.__all__)
def test_the_page_of_an_error_raises_it_and_shows_the_fix(name: str) -> None:
    page = (ERRORS / f"{name}.md").read_text("utf-8")
    assert page.startswith(f"# {name}\n")
    bases = [base.__name__ for base in getattr(fg.errors, name).__mro__[1:-1]]
    assert any(f"`{base}`" in page for base in bases if base in ("Exception", "FuncgradError", "TracerValueError"))
    found = [block for block in blocks(page) if block.language == "python"]
    raised = [i for i, block in enumerate(found) if "raises" in block.options]
    assert raised, "no block raises the error"
    for i in raised:
        assert issubclass(getattr(fg.errors, found[i].options["raises"]), getattr(fg.errors, name))
    assert any("raises" not in block.options for block in found[raised[0] :]), "no block shows what to do"


# The checks themselves.

FINE = """\
# A page

```python
x = 3
print(x)
```

which prints

```text
3
```

```python file=square.py raises=ShapeError
import funcgrad as fg
import numpy as np

fg.numpy.add(np.ones(2), np.ones(x))
```

```text
ShapeError: add: shapes do not broadcast: f64[2] and f64[3]
  at square.py:4   fg.numpy.add(np.ones(2), np.ones(x))
  hint: axes are matched from the last; x[:, None] adds one
```
"""


def test_a_page_that_holds_passes(tmp_path: Path) -> None:
    check(FINE, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n3\n", "\n4\n", "line 10: the output is"),
        ("which prints\n\n```text\n3\n```\n", "", "no text block follows"),
        ("ones(x)", "ones(2)", "ShapeError was not raised"),
        ("f64[3]\n", "f64[4]\n", "line 21: the output is"),
        ("square.py:4", "square.py:5", "line 21: the output is"),
        ("```python\nx", "```text\nx", "without a Python block"),
        ("```python\nx", "```py\nx", "a block is one of"),
        ("```python\nx", " ```python\nx", "not indented"),
    ],
)
def test_a_page_that_does_not_hold_fails(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert FINE.count(old) == 1 or old == "ones(x)"
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(FINE.replace(old, new), tmp_path)


def test_another_error_is_not_taken_for_the_expected_one(tmp_path: Path) -> None:
    with pytest.raises(fg.errors.ShapeError):
        check(FINE.replace("raises=ShapeError", "raises=DtypeError"), tmp_path)


def test_outputs_can_be_written_anew(tmp_path: Path) -> None:
    assert updated(FINE.replace("\n3\n", "\n\n").replace("square.py:4", ""), tmp_path) == FINE


def test_anchors() -> None:
    assert anchors("# A `b` c, d\n```text\n# no\n```\n## Two-three\n") == {"a-b-c-d", "two-three"}


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    for each in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        before = each.read_text("utf-8")
        with tempfile.TemporaryDirectory() as scratch:
            after = updated(before, Path(scratch))
        if after != before:
            each.write_text(after, "utf-8")
            print(f"wrote {page_name(each)}")
