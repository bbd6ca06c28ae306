"""The target of GPUs, whole: Programs made ready for a device, their texts, the devices."""

from __future__ import annotations

from funcgrad.core.ir import Program
from funcgrad.lowering.cuda.device import device_named, devices_found
from funcgrad.lowering.cuda.executable import CudaExecutable, cuda_executable, program_ptx, program_resources
from funcgrad.lowering.cuda.plan import Device


class Cuda:
    """What `lowering.gpu` hands on to."""

    def ready(self, program: Program, place: str) -> CudaExecutable:
        """A Program compiled for a device."""
        return cuda_executable(program, device_named(place))

    def text(self, program: Program, stage: str, arch: str | None) -> str:
        """The PTX, or a table of what the kernels take of a GPU."""
        return program_ptx(program, arch) if stage == "ptx" else program_resources(program, arch)

    def devices(self) -> list[Device]:
        """All GPUs; none if a package or the driver is missing."""
        return devices_found()

    def device(self, name: str) -> Device:
        """The device of that name."""
        return device_named(name)


CUDA = Cuda()
