"""From a Program to machine code: simplify, schedule, emit, compile; and the `Executable` that runs it.

What can run Programs is listed here; `target` says what that is.
"""

from funcgrad.core.device_array import _runners
from funcgrad.core.evaluate import set_execute
from funcgrad.lowering.cpu import Cpu
from funcgrad.lowering.executable import Executable, executable
from funcgrad.lowering.gpu import Gpu
from funcgrad.lowering.numba_source import Module as NumbaModule, numba_module, numba_text
from funcgrad.lowering.numba_source.executable import Numba, NumbaExecutable, compiled_handle, numba_executable
from funcgrad.lowering.target import DEVICES, LOWERINGS, backend_of, execute, place_of

_cpu = Cpu()
LOWERINGS |= {"llvm": _cpu, "numba": Numba()}
DEVICES |= {"cpu": _cpu, "cuda": Gpu()}
set_execute(execute)
_runners[:] = [execute]
