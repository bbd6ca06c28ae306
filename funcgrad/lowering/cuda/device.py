"""The GPUs of this machine: which there are, and one of them as a `plan.Device`, through CuPy.

CuPy is imported when a GPU is asked for, and never before. Everything happens on the legacy default stream, in order;
memory comes from CuPy's pool, so that what is freed while a kernel runs is used again after it only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy as np

from funcgrad.base.errors import DeviceError
from funcgrad.core.device_array import DeviceArray
from funcgrad.lowering.cache import cached
from funcgrad.lowering.cuda.plan import Device
from funcgrad.lowering.cuda.ptx import ARCHS, LEVEL, assembler_version, compile_cubin, find_ptxas, unbounded

INSTALL = 'pip install "funcgrad[cuda]"'

_known: dict[str, Device] = {}
_lock = threading.Lock()


def register(device: Device) -> None:
    """Let `device` be what its name means from now on."""
    _known[device.name] = device


def forget(name: str) -> None:
    """Undo `register`."""
    _known.pop(name, None)


def device_named(name: str) -> Device:
    """The device of a name such as ``"cuda:0"``.

    Raises
    ------
    DeviceError
        It is not there; says whether a package, the driver or the GPU is missing.
    """
    with _lock:
        found = _known.get(name)
        if found is None:
            found = _known[name] = _opened(int(name.partition(":")[2]))
        return found


def _opened(index: int) -> Device:
    cupy = import_cupy()
    count = _count(cupy)
    if index >= count:
        there = "none" if not count else ", ".join([f"cuda:{i}" for i in range(count)])
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "device='cuda:0'" if count else "nvidia-smi lists the GPUs that the driver sees"
        if visible is not None:
            there += f" with CUDA_VISIBLE_DEVICES={visible!r:.40}"
            hint = f"{f'{hint}, or ' if count else ''}unset CUDA_VISIBLE_DEVICES before Python starts"
        raise _missing(f"there is no GPU cuda:{index} on this machine: CuPy finds {there}", hint)
    device = CudaDevice(cupy, index)
    if int(device.arch[3:]) < ARCHS[0]:
        raise _missing(
            f"cuda:{index} ({device.title}) is {device.arch}: funcgrad needs a GPU of sm_{ARCHS[0]} or later",
            "device 'cpu', or another of fg.devices()",
        )
    return device


def _missing(message: str, hint: str) -> DeviceError:
    return DeviceError(message, hint=f"{hint}; fg.show(f, x, stage='ptx') needs no GPU")


def devices_found() -> list[Device]:
    """All GPUs, and what was registered; none if a package or the driver is missing."""
    names = set(_known)
    with suppress(Exception):  # a list of what is there never fails: asking for a device says why
        names |= {f"cuda:{i}" for i in range(_count(import_cupy()))}
    found = []
    for name in sorted(names, key=lambda name: int(name.partition(":")[2])):
        with suppress(DeviceError):
            found.append(device_named(name))
    return found


def import_cupy() -> Any:
    """The package cupy, or a `DeviceError` that says what is not installed."""
    spec = importlib.util.find_spec("cupy")
    if spec is None or getattr(spec, "origin", "") is None:  # nothing, or some folder of that name
        raise _missing(
            "the package cupy is not installed, through which funcgrad uses a GPU",
            f"{INSTALL}, or cupy-cuda12x for an older driver",
        )
    try:
        return importlib.import_module("cupy")
    except Exception as error:
        reason = _reason(error)
        if DRIVER_LIBRARY.search(reason):
            raise _missing(f"{NO_DRIVER}: {reason}", GET_DRIVER) from error
        raise _missing(f"the package cupy is installed, but cannot be imported: {reason}", INSTALL) from error


def _reason(error: BaseException) -> str:
    """What went wrong first, in a line: the root of an import error has no banner around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    said = [i for i, line in enumerate(lines) if line.lower() == "original error:"]  # a banner without a cause
    line = next(iter(lines[said[-1] + 1 if said else 0 :]), "")
    return line[:200] or type(error).__name__


NO_DRIVER = "there is no driver of NVIDIA on this machine"
GET_DRIVER = "install the driver; a container needs the one of its host (docker run --gpus all)"
DRIVER_LIBRARY = re.compile(r"libcuda\.so|nvcuda\.dll")
NO_DEVICE, INSUFFICIENT_DRIVER = 100, 35  # of cudaError; the second also means that there is no driver
STATES = {
    34: ("the driver library that is found is the stub of a CUDA toolkit", "take its folder stubs off LD_LIBRARY_PATH"),
    803: ("the driver of NVIDIA and its library have different versions", "restart the machine after an update"),
    804: (
        "the driver of NVIDIA is too old for the library that is found",
        "take its folder compat off LD_LIBRARY_PATH",
    ),
}
"""Other states of a driver: cudaErrorStubLibrary, -SystemDriverMismatch, -CompatNotSupportedOnDevice."""


def _count(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        status = getattr(error, "status", None)
        if status == NO_DEVICE:
            return 0
        if status == INSUFFICIENT_DRIVER:
            raise _insufficient(cupy) from error
        message, hint = STATES.get(
            status, (f"CUDA does not work on this machine: {_reason(error)}", "does nvidia-smi work?")
        )
        raise _missing(message, hint) from error


def _insufficient(cupy: Any) -> DeviceError:
    """The error of a driver that is not there, or too old for CuPy."""
    driver, built = [_version(cupy, name) for name in ("driverGetVersion", "runtimeGetVersion")]
    if not driver:
        return _missing(NO_DRIVER, GET_DRIVER)
    message = f"the driver of NVIDIA on this machine is for CUDA {driver}"
    message += f", and CuPy is built for CUDA {built}" if built else ", which is older than that of CuPy"
    older = driver.startswith("12.") and not built.startswith("12.")
    instead = ", or install cupy-cuda12x in place of cupy-cuda13x" if older else ""
    return _missing(message, f"a newer driver{instead}")


def _version(cupy: Any, name: str) -> str:
    """A version of CUDA, such as 13.0, as CuPy's runtime tells it; '' if it does not."""
    with suppress(Exception):  # without a driver some ask it, and fail
        found = int(getattr(cupy.cuda.runtime, name)())
        return f"{found // 1000}.{found % 1000 // 10}" if found else ""
    return ""


HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind


class _Memory:
    """Memory of a device; it is freed with this object."""

    __slots__ = ("address", "pointer")

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.address = int(pointer.ptr)


class CudaDevice:
    """A GPU, as the plan of a Program uses it (`plan.Device`)."""

    def __init__(self, cupy: Any, index: int) -> None:
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.cupy, self.index, self.name = cupy, index, f"cuda:{index}"
        self._runtime, self._stream = cupy.cuda.runtime, cupy.cuda.Stream.null
        self.arch = f"sm_{properties['major']}{properties['minor']}"
        self.title = properties["name"].decode()
        self.memory = int(properties["totalGlobalMem"])

    def _here(self) -> AbstractContextManager[Any]:
        """The GPU of what follows is this one."""
        other = self._runtime.getDevice() != self.index
        return self.cupy.cuda.Device(self.index) if other else nullcontext()  # type: ignore[no-any-return]

    def allocate(self, size: int) -> _Memory:
        """Memory; CuPy's pool aligns to 512 bytes, and rounds up to that."""
        with self._here(), self._stream:
            return _Memory(self.cupy.cuda.alloc(max(size, 16)))

    def load(self, ptx: str) -> Any:
        """A module, and its functions as they are asked for.

        Without an assembler, or if that is too old, or newer than the driver, the driver compiles, which does not say
        what spills.
        """
        codes = [unbounded(ptx).encode()]
        if find_ptxas() is not None:
            text = f"// cubin {self.arch} {assembler_version()}\n{ptx}"
            with suppress(DeviceError):
                codes.insert(0, cached(text, LEVEL, lambda: compile_cubin(ptx, self.arch)))
        with self._here():
            for code in codes:
                module = self.cupy.cuda.function.Module()
                try:
                    module.load(code)
                except Exception:
                    if code is codes[-1]:
                        raise
                else:
                    break
        return cache(module.get_function)

    def launch(self, module: Any, name: str, blocks: int, threads: int, addresses: Sequence[int]) -> None:
        """Run a kernel."""
        with self._here():
            module(name)((blocks,), (threads,), tuple([np.uint64(a) for a in addresses]), stream=self._stream)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes on the device."""
        with self._here():
            self._runtime.memcpyAsync(target, source, size, DEVICE_TO_DEVICE, self._stream.ptr)

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Copy bytes to the device; they are read before this returns."""
        host = np.frombuffer(data, np.uint8)
        with self._here():
            self._runtime.memcpy(address, host.ctypes.data, host.size, HOST_TO_DEVICE)

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from the device, when all before is done."""
        host = np.empty(size, np.uint8)
        with self._here():
            self._runtime.memcpy(host.ctypes.data, address, size, DEVICE_TO_HOST)
        return host.tobytes()

    def to_dlpack(self, array: DeviceArray, **kwargs: Any) -> Any:
        """A DeviceArray as a DLPack capsule."""
        with self._here():
            return self.cupy.asarray(array).__dlpack__(**kwargs)

    def imported(self, x: Any) -> Any:
        """Another library's array as one of CuPy, in C order, on this GPU."""
        cupy = self.cupy
        with self._here(), self._stream:
            y = cupy.asarray(x) if hasattr(x, "__cuda_array_interface__") else cupy.from_dlpack(x)
            return cupy.ascontiguousarray(y if y.device.id == self.index else cupy.array(y))
