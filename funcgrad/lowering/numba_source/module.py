"""A Program as the text of a Python module that needs NumPy and Numba only.

One function computes the Program. Loops stand in it as they are; where there are many, or one comes again with other
arrays, they are functions of their own (Numba's time grows faster than the length of a function).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from funcgrad.core.ir import Equation, Program, Shape
from funcgrad.lowering.kernels import Control, Library, Loop, Product
from funcgrad.lowering.numba_source.control import control
from funcgrad.lowering.numba_source.helpers import HELPERS, helper_text, used_helpers
from funcgrad.lowering.numba_source.names import Names, identifier, is_reserved
from funcgrad.lowering.numba_source.prepare import prepared
from funcgrad.lowering.numba_source.spelling import dtype_text
from funcgrad.lowering.numba_source.whole import library, product
from funcgrad.lowering.numba_source.writer import Block, Line, Writer
from funcgrad.lowering.schedule import schedule

LONGEST = 100  # lines of a function that holds its loops itself
HEAD = """import math

import numba
import numpy as np

njit = numba.njit(error_model="numpy")
"""
WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Module:
    """A Program as Python text.

    Attributes
    ----------
    text
        The module.
    name
        Its public function.
    checks
        What can fail, if checks are coded: ``status[0]`` is 1 + the position of the first that did.
    borrowed
        For each result, whether it is an argument, or shares memory with one.
    """

    text: str
    name: str
    checks: tuple[Equation, ...]
    borrowed: tuple[bool, ...]


def numba_text(program: Program) -> str:
    """The text of a Program as a module that stands alone."""
    return numba_module(program).text


def numba_module(
    program: Program,
    *,
    doc: str = "",
    results: Sequence[str] = (),
    coded: bool = False,
) -> Module:
    """A Program as the text of a module.

    Parameters
    ----------
    doc
        One line that says what it computes.
    results
        Names of the results, for the docstring.
    coded
        The function takes a last argument ``status``, two int64, and checks leave a number and a value there; without
        it they raise.
    """
    return _Driver(prepared(program), doc, results, coded).module()


class _Driver:
    def __init__(self, program: Program, doc: str, results: Sequence[str], coded: bool) -> None:
        self.program = program
        name = identifier(program.name)
        self.name = f"{name}_" if is_reserved(name) else name
        self.doc = doc or f"{program.name}, traced by funcgrad."
        self.results = results
        self.coded = coded
        self.schedule = schedule(program, plain=True)
        self.names = Names(program, self.name)
        self.names.reserve([v for e in program.equations for v in e.outputs if v in self._shown()])
        self.functions: dict[str, tuple[str, str]] = {}  # canonical text → name and text
        self.kernels: set[str] = set()  # names of these functions

    def _shown(self) -> set[object]:
        """Values that have a name in the text: results of kernels, and what loops compute on the way."""
        shown: set[object] = set(self.schedule.buffers)
        for k in self.schedule.kernels:
            if isinstance(k, Loop):
                shown.update([v for e in (*k.equations, *k.reductions) for v in e.outputs])
            elif isinstance(k, Control):
                shown.difference_update(k.equation.outputs)  # named after what their bodies call them
        return shown

    def module(self) -> Module:
        """The text."""
        writer = Writer(self.program, self.schedule, self.names, self.coded)
        arguments = [self.names.of(v) for v in self.program.inputs]
        body = self._statements(writer)
        body.append(Line(0, self._return()))
        parameters = [*arguments, *(["status"] if self.coded else [])]
        checks = [] if self.coded else self._shape_checks(arguments)
        function = [f"def {self.name}({', '.join(parameters)}):", *self._docstring(arguments)]
        function += [f"    {line}" for line in (*checks, *_aligned(body))]
        kernels = [text for _, text in self.functions.values()]
        code = "\n\n\n".join([f"@njit\n{text}" for text in (*kernels, "\n".join(function))])
        helpers = used_helpers(code)
        head = HEAD
        pieces = [head, *([helper_text(helpers)] if helpers else []), code]
        text = "\n\n".join([p if i == 0 else f"{p}\n" for i, p in enumerate(pieces)])
        if "math." not in text:
            text = text.replace("import math\n\n", "", 1)
        inputs = set(self.program.inputs)
        borrowed = tuple([root in inputs and bool(root.aval.shape) for root in self.schedule.outputs])
        return Module(text, self.name, tuple(writer.checks), borrowed)

    def _statements(self, writer: Writer) -> list[Line]:
        """All kernels of a Program or body; if they are long, or come again, as calls of functions."""
        blocks = [self._block(writer, k) for k in writer.kernels]
        length = sum([len(b.before) + len(b.lines) for b in blocks])
        canonical = [self._canonical(b) if b.function else "" for b in blocks]
        body: list[Line] = []
        for b, text in zip(blocks, canonical, strict=True):
            body += b.before
            if b.function and (length > LONGEST or canonical.count(text) > 1):
                body.append(self._call(b, text))
            else:
                body += b.lines
        return body

    def _block(self, writer: Writer, kernel: object) -> Block:
        if isinstance(kernel, Loop):
            return writer.loop(kernel)
        if isinstance(kernel, Product):
            return product(writer, kernel)
        if isinstance(kernel, Control):
            return control(writer, kernel.equation, self._statements)
        assert isinstance(kernel, Library)
        return library(writer, kernel.equation)

    # -- loops as functions

    def _is_global(self, name: str) -> bool:
        return name in self.kernels or (name != "status" and is_reserved(name))

    def _canonical(self, b: Block) -> str:
        """The lines of a block with its names replaced by numbers in order of appearance."""
        numbers: dict[str, str] = {}

        def number(found: re.Match[str]) -> str:
            name = found.group()
            return name if self._is_global(name) else numbers.setdefault(name, f"${len(numbers)}")

        return "\n".join([" " * line.indent + WORD.sub(number, line.text) for line in b.lines])

    def _call(self, b: Block, canonical: str) -> Line:
        parameters = [n for n in _needed(b.lines) if not self._is_global(n)]
        results = list(dict.fromkeys([n for n in b.results if n.isidentifier()]))
        if canonical not in self.functions:
            name = self.names.fresh(f"kernel_{len(self.functions)}")
            lines = [f"def {name}({', '.join(parameters)}):", *[f"    {line}" for line in _aligned(b.lines)]]
            if results:
                lines.append(f"    return {', '.join(results)}")
            self.functions[canonical] = name, "\n".join(lines)
            self.kernels.add(name)
        call = f"{self.functions[canonical][0]}({', '.join(parameters)})"
        return Line(0, f"{', '.join(results)} = {call}" if results else call)

    # -- the public function

    def _return(self) -> str:
        texts = []
        for root, a in zip(self.schedule.outputs, self.program.outputs, strict=True):
            name, have, want = self.names.of(root), root.aval.shape, a.aval.shape
            if have == want:
                texts.append(name)
            elif want == ():
                texts.append(f"{name}[{', '.join('0' * len(have))}]")
            elif have == ():
                texts.append(f"np.full({want}, {name}, {dtype_text(a.aval.dtype)})")
            else:
                texts.append(f"{name}.reshape({want[0] if len(want) == 1 else want})")
        return f"return {', '.join(texts)}".rstrip()

    def _shape_checks(self, arguments: list[str]) -> list[str]:
        lines = []
        for v, name in zip(self.program.inputs, arguments, strict=True):
            if v.aval.shape:
                lines += [f"if {name}.shape != {v.aval.shape}:"]
                lines += [f'    raise ValueError("{name} must have the shape {v.aval.shape}")']
        return lines

    def _docstring(self, arguments: list[str]) -> list[str]:
        if self.coded:
            return []
        lines = [f'    """{self.doc}', ""]
        rows = [(n, v.aval.shape, v.aval.dtype.name) for n, v in zip(arguments, self.program.inputs, strict=True)]
        given = self.program.input_names or ("",) * len(rows)
        if rows:
            lines += ["    Parameters", "    ----------"]
            for (name, shape, dtype), path in zip(rows, given, strict=True):
                lines.append(f"    {name} : {_type_text(shape, dtype)}{_origin(name, path)}")
            lines.append("")
        lines += ["    Returns", "    -------"]
        outs = [(a.aval.shape, a.aval.dtype.name) for a in self.program.outputs]
        named = len(self.results) == len(outs) and list(self.results) != ["result"]
        for i, (shape, dtype) in enumerate(outs):
            lines.append(f"    {f'{self.results[i]} : ' if named else ''}{_type_text(shape, dtype)}")
        return [*lines, '    """']


def _type_text(shape: Shape, dtype: str) -> str:
    return f"{dtype}[{', '.join([str(n) for n in shape])}]" if shape else dtype


def _origin(name: str, path: str) -> str:
    if re.fullmatch(r"c\d+", path):
        return ", an array that the function captured"
    return f", {path}" if path and path != name else ""


class _Reads(ast.NodeVisitor):
    """Finds the names that statements read before they are given a value."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.found: dict[str, None] = {}

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.given.add(node.id)
        elif node.id not in self.given:
            self.found[node.id] = None

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)


def _needed(lines: Sequence[Line]) -> list[str]:
    """The names that these lines take from outside."""
    reads = _Reads()
    reads.visit(ast.parse("\n".join(["    " * line.indent + line.text for line in lines])))
    return list(reads.found)


def _aligned(lines: Sequence[Line]) -> list[str]:
    """Lines with the user's lines behind them, in one column, each where it changes."""
    texts = ["    " * line.indent + line.text for line in lines]
    shown, previous = [], ""
    for line in lines:
        shown.append(line.source if line.source != previous else "")
        previous = line.source or previous
    column = max([len(t) for t, s in zip(texts, shown, strict=True) if s], default=0)
    return [f"{t:<{column}}  # {s}" if s else t for t, s in zip(texts, shown, strict=True)]


__all__ = ["HELPERS", "Module", "numba_module", "numba_text"]
