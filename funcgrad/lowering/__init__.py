"""From a Program to machine code: simplify, schedule, emit, compile; and the `Executable` that runs it."""

from funcgrad.lowering.executable import Executable, executable
