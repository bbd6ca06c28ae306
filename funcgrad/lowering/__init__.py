"""From a Program to something that runs. Today: an `Executable` that evaluates with NumPy."""

from funcgrad.lowering.executable import Executable, executable
