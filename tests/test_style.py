"""Habits that can be checked by reading: short files, no leftovers, docstrings, and the project's pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "funcgrad"

MAX_LINES = 500
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
READ_FOR_LEFTOVERS = ("funcgrad", "tests", "benchmarks", "docs", "examples", "notebooks", ".ci")
TEXT_SUFFIXES = {".py", ".pyi", ".md", ".toml", ".txt", ".yaml", ".yml", ""}
DOCUMENTED = ("ops", "numpy", "api", "nn", "optim", "tree")

Documentable = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.Module) -> set[int]:
    """The numbers of all lines that belong to a docstring."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, Documentable) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def count_lines(source: str) -> int:
    """The lines of a module, without docstrings and blank lines."""
    docstrings = docstring_lines(ast.parse(source))
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for number, line in lines if line.strip() and number not in docstrings)


def undocumented(source: str) -> list[str]:
    """The public functions at the top of a module that have no docstring."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not any(ast.unparse(item).endswith("overload") for item in node.decorator_list)
        and ast.get_docstring(node) is None
    ]


def leftovers(text: str) -> list[int]:
    """The numbers of the lines with a note about work that is still to be done."""
    return [number for number, line in enumerate(text.splitlines(), start=1) if LEFTOVER.search(line)]


def python_files(name: str) -> Iterator[Path]:
    """The files of the module or package `name` directly under funcgrad."""
    module = PACKAGE / f"{name}.py"
    if module.exists():
        yield module
    yield from sorted((PACKAGE / name).rglob("*.py"))


def project_texts() -> Iterator[Path]:
    suffixes = TEXT_SUFFIXES - {""}
    yield from sorted(path for path in REPO.iterdir() if path.is_file() and path.suffix in suffixes)
    for folder in READ_FOR_LEFTOVERS:
        for path in sorted((REPO / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path


def bash_block(page: str, heading: str) -> str:
    """The content of the one bash block below `heading`."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block)


def test_files_are_short() -> None:
    counts = {path.relative_to(REPO): count_lines(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert counts, f"no modules under {PACKAGE}"
    too_long = [f"{path}: {count} lines" for path, count in sorted(counts.items()) if count > MAX_LINES]
    assert not too_long, "\n".join(too_long)


def test_nothing_is_left_over() -> None:
    found = [
        f"{path.relative_to(REPO)}:{number}"
        for path in project_texts()
        for number in leftovers(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_functions_have_docstrings(name: str) -> None:
    found = [
        f"{path.relative_to(REPO)}: {function}"
        for path in python_files(name)
        if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(PACKAGE).parts)
        for function in undocumented(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_changelog_has_an_unreleased_section() -> None:
    headings = re.findall(r"^## (.+)$", (REPO / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_readme_has_the_two_commands() -> None:
    page = (REPO / "README.md").read_text("utf-8")
    assert page.count("```bash") == 2
    for heading, extra, last in (
        ("Run it", "demo", ".venv/bin/python -m funcgrad demo"),
        ("Test it", "test", ".venv/bin/python -m pytest"),
    ):
        block = bash_block(page, heading)
        assert block.count("\n") == 1, f"{heading}: not a single line"
        parts = block.strip().split(" && ")
        assert parts[0] == "python3 -m venv .venv"
        assert f'".[{extra}]"' in parts[1]
        assert parts[-1].startswith(last)


def test_ci_takes_its_commands_from_the_readme() -> None:
    script = (REPO / ".ci" / "run").read_text("utf-8")
    assert "README.md" in script
    for heading in ("Run it", "Test it"):
        assert f"readme_command '{heading}'" in script
    assert "pytest" not in re.sub(r"#.*|^step .*", "", script, flags=re.MULTILINE)


# The checks themselves.


def test_docstrings_and_blank_lines_do_not_count() -> None:
    source = '"""Module.\n\nText.\n"""\n\nx = """a\nb"""\n\n\ndef f():\n    """One line."""\n    # why\n    return x\n'
    assert count_lines(source) == 5


def test_a_public_function_without_docstring_is_found() -> None:
    source = (
        'def f():\n    """Yes."""\n\ndef g():\n    pass\n\ndef _h():\n    pass\n\n@overload\ndef f(x): ...\n'
        "class A:\n    def method(self):\n        pass\n"
    )
    assert undocumented(source) == ["g"]


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "X" + "XX"])
def test_a_leftover_is_found(word: str) -> None:
    assert leftovers(f"fine\nx = 1  # {word}: later\n{word.lower()}\nA{word}S") == [2]
