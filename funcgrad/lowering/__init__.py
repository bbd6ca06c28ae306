"""From a Program to machine code: simplify, schedule, emit, compile; and the `Executable` that runs it."""

from funcgrad.lowering.executable import RUNNERS, Executable, executable
from funcgrad.lowering.gpu import device_named, devices_found, program_ptx, program_resources
from funcgrad.lowering.numba_source import Module as NumbaModule, numba_module, numba_text
from funcgrad.lowering.numba_source.executable import NumbaExecutable, compiled_handle, numba_executable
