"""What the PTX interpreter refuses, and what it detects."""

from __future__ import annotations


class PtxError(Exception):
    """A fault of a kernel, or PTX that is not known.

    Attributes
    ----------
    kernel, line
        Where: the function's name, and the number of the line in the PTX text.
    threads
        The first of the threads at fault, as (block, thread) numbers in the launch.
    address, buffer
        The first address at fault and the name of the buffer that it belongs to or lies next to, if it is about memory.
    """

    def __init__(
        self,
        message: str,
        kernel: str = "",
        line: int = 0,
        threads: tuple[tuple[int, int], ...] = (),
        address: int | None = None,
        buffer: str = "",
    ) -> None:
        super().__init__(message)
        self.kernel, self.line, self.threads = kernel, line, threads
        self.address, self.buffer = address, buffer


class UnknownPtx(PtxError):
    """An instruction, modifier, operand or directive that the interpreter does not know."""


class OutOfBounds(PtxError):
    """An access outside of every buffer, or in part."""


class Misaligned(PtxError):
    """An access whose address is no multiple of its size."""


class ReadOnly(PtxError):
    """A write to memory that may only be read."""


class Uninitialised(PtxError):
    """A read of memory or of a register that nothing was written to."""


class Race(PtxError):
    """Two threads touch a byte, one of them writes, and nothing orders them."""


class DivergentBarrier(PtxError):
    """Threads of a block wait at different places, and none can go on."""


class InactiveLane(PtxError):
    """An instruction of a warp that names, or reads from, a lane which does not take part."""


class NoEnd(PtxError):
    """More instructions than the launch may take."""


class Trap(PtxError):
    """A thread met ``trap``, or an operation without a defined result."""
