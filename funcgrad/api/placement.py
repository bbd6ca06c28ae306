"""Where arrays are: names of devices, and arrays brought from one place to another."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from funcgrad.base.dtypes import is_supported
from funcgrad.base.errors import DtypeError, ParameterError
from funcgrad.core.device_array import DeviceArray, placed
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Tracer
from funcgrad.lowering import DEVICES
from funcgrad.numpy.operands import array, on_gpu

ALIGNED = 16  # bytes: what kernels count on
KDLCPU = 1  # DLPack's name of ordinary memory


def device_name(device: Any, what: str) -> str | None:
    """The name of a device that was given as a name or as a `Device`: ``"cpu"``, ``"cuda:0"``; None as it is."""
    if device is None:
        return None
    name = getattr(device, "name", device)
    found = re.fullmatch(r"(cpu|cuda)(?::([0-9]{1,9}))?", name) if isinstance(name, str) else None
    if found is None or (found[1] == "cpu" and int(found[2] or 0)):
        hint = "the GPUs of NVIDIA are 'cuda', 'cuda:1' …" if str(device).lower().startswith(("gpu", "nvidia")) else ""
        raise ParameterError(
            f"{what}: device is 'cpu', 'cuda', 'cuda:1' …, or one of funcgrad.devices(), got {device!r:.40}", hint=hint
        )
    return "cpu" if found[1] == "cpu" else f"cuda:{int(found[2] or 0)}"


def device_named(name: str) -> Any:
    """The device of a name, or a DeviceError that says what is missing."""
    return DEVICES[name.partition(":")[0]].device(name)


def taken(x: Any, device: str) -> Any:
    """An argument as it goes to a device: arrays of other libraries become a `DeviceArray` that uses their memory."""
    if isinstance(x, DeviceArray | Tracer | np.ndarray | np.generic) or not _foreign(x):
        return x
    if device != "cpu":
        return adopted(x, device_named(device))
    return to_host(x) if on_gpu(x) else np.from_dlpack(x)


def _foreign(x: Any) -> bool:
    return hasattr(type(x), "__cuda_array_interface__") or hasattr(type(x), "__dlpack__")


def to_host(x: Any) -> Any:
    """An array on a GPU, also of another library, copied to ordinary memory; anything else as it is."""
    if type(x) is DeviceArray:
        return x.to_host()
    if isinstance(x, Tracer | np.ndarray | np.generic) or not (_foreign(x) and on_gpu(x)):
        return x
    index = x.__dlpack_device__()[1] if hasattr(x, "__dlpack_device__") else 0
    return adopted(x, device_named(f"cuda:{index}")).to_host()


def to_device(x: Any, name: str) -> Any:
    """An array or number as a `DeviceArray` on that device, or in ordinary memory if it is the CPU."""
    if name == "cpu":
        return to_host(x)
    device = device_named(name)
    x = taken(x, name)
    return placed(x if type(x) is DeviceArray else array(x, "device_put"), device)


class _Borrowed:
    """Memory of another library's array, which lives as long as this."""

    __slots__ = ("address", "owner")

    def __init__(self, owner: Any, address: int) -> None:
        self.owner, self.address = owner, address


def adopted(x: Any, device: Any) -> DeviceArray:
    """An array of another library: its memory, if it is in C order and aligned, else a copy."""
    if not hasattr(x, "__cuda_array_interface__") and x.__dlpack_device__()[0] == KDLCPU:
        return to_device(np.from_dlpack(x), device.name)  # type: ignore[no-any-return]
    x = device.imported(x)
    given = x.__cuda_array_interface__
    dtype, shape = np.dtype(given["typestr"]), tuple(given["shape"])
    if not is_supported(dtype) or not dtype.isnative:
        raise DtypeError(f"funcgrad computes with bool, integers and floats, not with dtype {dtype}")
    aval, (address, _) = make_aval(shape, dtype), given["data"]
    natural = np.ndarray(shape, dtype, np.empty(aval.size * dtype.itemsize, np.uint8)).strides
    strides = tuple(given.get("strides") or natural)
    contiguous = all([s == t or n <= 1 for s, t, n in zip(strides, natural, shape, strict=True)])
    if aval.size and contiguous and address % ALIGNED == 0:
        return DeviceArray(device, _Borrowed(x, address), aval)
    memory = device.allocate(aval.size * dtype.itemsize)
    if aval.size and contiguous:
        device.copy(memory.address, address, aval.size * dtype.itemsize)
    elif aval.size:  # through ordinary memory: all bytes from the first element to the last
        low = sum([min(s * (n - 1), 0) for s, n in zip(strides, shape, strict=True)])
        high = sum([max(s * (n - 1), 0) for s, n in zip(strides, shape, strict=True)]) + dtype.itemsize
        data = device.read(address + low, high - low)
        device.write(memory.address, np.ndarray(shape, dtype, data, -low, strides).tobytes())
    return DeviceArray(device, memory, aval)
