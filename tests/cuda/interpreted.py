"""A GPU that is not there: the devices of `funcgrad.lowering.cuda` on an interpreter of PTX."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from tests.ptx.device import PtxDevice


class Memory:
    """Memory of the interpreter, which is given back after this object."""

    def __init__(self, device: Interpreted, size: int) -> None:
        rounded = -(-max(size, 1) // 16) * 16
        self.address = device.ptx.alloc(rounded)
        device.ptx.write(self.address + size, bytes(rounded - size))  # words of small elements are read there
        weakref.finalize(self, device.dead.append, self.address)


class Interpreted:
    """An interpreter of PTX, as the plan of a Program uses a GPU (`funcgrad.lowering.cuda.plan.Device`)."""

    def __init__(self, index: int = 0, arch: str = "sm_80") -> None:
        self.name, self.index, self.arch = f"cuda:{index}", index, arch
        self.title, self.memory = "interpreter of PTX", 2**30
        self.ptx = PtxDevice()
        self.launched: list[str] = []
        self.sent = self.fetched = 0  # bytes
        self.dead: list[int] = []
        self.lock = threading.RLock()

    def allocate(self, size: int) -> Memory:
        """Memory; what nobody holds is given back before."""
        with self.lock:
            while self.dead:
                self.ptx.free(self.dead.pop())
            return Memory(self, size)

    def load(self, ptx: str) -> Any:
        """A module."""
        with self.lock:
            return self.ptx.load(ptx)

    def launch(self, module: Any, name: str, blocks: int, threads: int, addresses: Sequence[int]) -> None:
        """Run a kernel."""
        with self.lock:
            self.launched.append(name)
            if name == "set_heap":  # what grows there is copied with what was not written of it yet
                self.ptx.write(addresses[0], b"\xff" * (addresses[1] - addresses[0]))
            self.ptx.launch(module, name, (blocks, 1, 1), (threads, 1, 1), [int(a) for a in addresses])

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes, of which not all need be written: rows that lie apart."""
        with self.lock:
            self.ptx.write(target, self.ptx.read(source, size, initialised=False))

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Copy bytes to the device."""
        with self.lock:
            self.sent += len(data)
            self.ptx.write(address, data)

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from the device."""
        with self.lock:
            self.fetched += size
            return self.ptx.read(address, size)

    def imported(self, x: Any) -> Any:
        """Another library's array."""
        return x


class Borrowed:
    """An array of another library, in memory of an interpreter; `change` makes it a view."""

    def __init__(self, device: Interpreted, x: Any, change: Any = lambda x: x) -> None:
        self.memory = device.allocate(x.nbytes)
        device.write(self.memory.address, x.tobytes())
        self.view, self.base = change(x), x

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        x = self.view
        offset = x.ctypes.data - self.base.ctypes.data
        address = self.memory.address + offset if x.size else 0
        return {"shape": x.shape, "typestr": x.dtype.str, "strides": x.strides, "data": (address, False), "version": 3}
