"""Stacks that are arguments and results of Programs on a GPU: three words, and what they lead to (`registers.stacks`).

A result stays where it is: it holds the memory of the call that made it, and is brought to ordinary memory only where
someone looks at its values. A stack from there is sent: rows and descriptions of each level.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import Any

import numpy as np

from funcgrad.core.device_array import DeviceStack
from funcgrad.core.ir import Stack
from funcgrad.core.stacked import Stacked, stacked
from funcgrad.lowering.cuda.plan import Device
from funcgrad.lowering.registers.stacks import DESCRIPTION, WORDS, bytes_of, depth_of


def left(device: Device, words: Any, aval: Stack, held: list[Any]) -> DeviceStack:
    """A result whose words lie in a memory; `held` is all that they may lead to."""
    return DeviceStack(aval, device, words, held, lambda: fetched(device, words.address, aval))


def fetched(device: Device, address: int, aval: Stack) -> Stacked:
    """The stack whose words are at an address, in ordinary memory."""
    slot, first, count = unpack("<3q", device.read(address, 8 * WORDS))
    elem = aval.elem
    if not count:
        return stacked([], elem)
    start, stride = unpack("<2q", device.read(slot, 16))
    start += first * stride
    if isinstance(elem, Stack):
        return stacked([fetched(device, start + i * stride, elem) for i in range(count)], elem)
    size = bytes_of(elem)
    if not size:
        return stacked([np.zeros(elem.shape, elem.dtype)] * count, elem)
    apart = stride != size  # other values of the trips lie between the rows
    data = (
        b"".join([device.read(start + i * stride, size) for i in range(count)])
        if apart
        else device.read(start, count * size)
    )
    return stacked(np.frombuffer(data, elem.dtype).reshape(count, *elem.shape), elem)  # type: ignore[arg-type]


def sent(device: Device, x: Stacked) -> tuple[int, list[Any]]:
    """The address of the words of a stack that is copied to a device, and the memory of it."""
    depth, held = depth_of(x.aval), []

    def put(data: bytes) -> int:
        held.append(device.allocate(len(data)))
        if data:
            device.write(held[-1].address, data)
        return int(held[-1].address)

    count = int(x.counts[-1].sum())
    size = x.data.nbytes // max(count, 1)
    slot = put(pack(f"<{DESCRIPTION}q", put(np.ascontiguousarray(x.data).tobytes()), size, count, count, 0))
    for level in range(depth - 1, 0, -1):
        counts = x.counts[level].astype(np.int64)
        words = np.stack([np.full_like(counts, slot), np.cumsum(counts) - counts, counts], axis=1)
        n = len(counts)
        slot = put(pack(f"<{DESCRIPTION}q", put(words.tobytes()), 8 * WORDS, n, n, 0))
    return put(pack(f"<{WORDS}q", slot, 0, len(x))), held
