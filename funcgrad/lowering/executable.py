"""What `jit` calls: a Program made ready to run, remembered by what it computes.

`execute` finds the executable of a Program (the same one for equal Programs, whoever traced them) and runs it.
The interface is that of compiled code: positional arrays of exactly the avals of the Program in, raw results out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.core.evaluate import run, set_execute
from funcgrad.core.ir import Program
from funcgrad.core.trace import eagerly


class Executable:
    """A Program that is ready to run.

    Attributes
    ----------
    program : Program
        What it computes.
    """

    __slots__ = ("__weakref__", "program")

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Results for arrays of the Program's input types, as raw values that may share memory with `args`."""
        with eagerly():
            return run(self.program, args)


def executable(program: Program) -> Executable:
    """The executable of `program`; it lives as long as the Program."""
    return program.remember("executable", lambda: Executable(program))


def execute(program: Program, args: Sequence[Any]) -> list[Any]:
    """Run `program` at a jit boundary."""
    return executable(program)(args)


set_execute(execute)
