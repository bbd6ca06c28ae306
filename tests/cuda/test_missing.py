"""Asking for a GPU that is not there says what is missing; CPU code never looks for one."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.errors import DeviceError, UnsupportedError
from funcgrad.lowering.cuda import device as gpus, ptx
from tests.cuda.interpreted import Interpreted

X = np.linspace(0.0, 1.0, 5)
ASKS = (
    lambda: fg.jit(lambda x: x + 1, device="cuda")(X),
    lambda: fg.device_put(X, "cuda"),
    lambda: fg.devices("cuda"),
    lambda: fg.grad(lambda x: np.sum(fg.jit(np.sin, device="cuda")(x)))(X),
)


@pytest.fixture(autouse=True)
def none_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_known", {})


class RuntimeFault(RuntimeError):
    """As CuPy's CUDARuntimeError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cuda error {status}")
        self.status = status


class FakeCupy:
    """The part of CuPy that funcgrad uses, on the interpreter of PTX; `status` is an error of the runtime."""

    def __init__(self, count: int = 1, status: int = 0, driver: int = 0, built: int = 13000) -> None:
        self.count, self.status, self.driver, self.built = count, status, driver, built
        self.here: list[int] = []
        self.current = 0
        self.stream = _Context(lambda: None)
        self.stream.ptr = 0
        self.interpreter = Interpreted()
        self.cuda = types.SimpleNamespace(
            runtime=self, Device=self._device, alloc=self._alloc,
            Stream=types.SimpleNamespace(null=self.stream),
            function=types.SimpleNamespace(Module=lambda: _Module(self)),
        )  # fmt: skip

    def getDeviceCount(self) -> int:
        if self.status:
            raise RuntimeFault(self.status)
        return self.count

    def driverGetVersion(self) -> int:
        return self.driver

    def runtimeGetVersion(self) -> int:
        if not self.built:
            raise RuntimeFault(self.status)
        return self.built

    def getDevice(self) -> int:
        return self.current

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        major = 9 if index < 2 else 7
        return {"name": f"Fake {index}".encode(), "major": major, "minor": 0, "totalGlobalMem": 2**34}

    def _device(self, index: int) -> Any:
        return _Context(lambda: self.here.append(index))

    def _alloc(self, size: int) -> Any:
        memory = self.interpreter.allocate(size)
        return types.SimpleNamespace(ptr=memory.address, memory=memory)

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (3, 0)
        self.interpreter.copy(target, source, size)

    def memcpy(self, target: int, source: int, size: int, kind: int) -> None:
        if kind == 1:
            self.interpreter.write(target, ctypes.string_at(source, size))
        else:
            assert kind == 2
            ctypes.memmove(target, self.interpreter.read(source, size), size)


class _Context:
    def __init__(self, enter: Any) -> None:
        self.enter = enter

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *exc: object) -> None:
        pass


class _Module:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def load(self, code: bytes) -> None:
        assert type(code) is bytes
        self.code = self.cupy.interpreter.load(code.decode())

    def get_function(self, name: str) -> Any:
        def launch(grid: tuple[int], block: tuple[int], args: tuple[Any, ...], stream: Any) -> None:
            assert all(type(a) is np.uint64 for a in args) and stream is self.cupy.stream
            self.cupy.interpreter.launch(self.code, name, *grid, *block, args)

        return launch


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that lets a module be found as cupy; an exception is raised by its import."""
    real = importlib.util.find_spec, importlib.import_module

    def install(module: Any) -> None:
        def load(name: str, *args: Any) -> Any:
            if name != "cupy":
                return real[1](name, *args)
            if isinstance(module, Exception):
                raise module
            return module

        monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: n == "cupy" or real[0](n, *a))
        monkeypatch.setattr(importlib, "import_module", load)

    return install


def refused(match: str, hint: str) -> None:
    for ask in ASKS:
        with pytest.raises(DeviceError, match=f"(?m){match}") as e:
            ask()
        assert e.value.hint == f"{hint}; fg.show(f, x, stage='ptx') needs no GPU" and e.value.source is not None
        assert len(str(e.value).splitlines()) <= 4
    assert [d.name for d in fg.devices()] == ["cpu"]


INSTALL = 'pip install "funcgrad[cuda]"'
DRIVER = "install the driver; a container needs the one of its host (docker run --gpus all)"


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    refused("the package cupy is not installed", f"{INSTALL}, or cupy-cuda12x for an older driver")


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    refused("the package cupy is not installed", f"{INSTALL}, or cupy-cuda12x for an older driver")


BANNER = """
================================================================
Failed to import CuPy.

If you installed CuPy via wheels, make sure that the package matches the version of CUDA.

Original error:
  ImportError: {}
================================================================
"""


def banner(message: str, caused: bool) -> ImportError:
    """As CuPy raises it: the text of the cause stands in it, and it may be chained, too."""
    error = ImportError(BANNER.format(message))
    error.__cause__ = ImportError(f"{message}\nmore") if caused else None
    return error


@pytest.mark.parametrize("caused", [True, False])
def test_a_broken_package_in_one_line(installed: Any, caused: bool) -> None:
    error = banner("libcudart.so.13: cannot open", caused)
    installed(error)
    refused("installed, but cannot be imported: (ImportError: )?libcudart.so.13: cannot open$", INSTALL)
    with pytest.raises(DeviceError) as e:
        ASKS[1]()
    assert e.value.__cause__ is error and "====" not in str(e.value)


@pytest.mark.parametrize(
    "error", [ImportError("libcudart.so.13: cannot open"), AttributeError("libcudart.so.13: cannot open")]
)
def test_a_package_that_raises_something(installed: Any, error: Exception) -> None:
    installed(error)
    refused("cannot be imported: libcudart.so.13: cannot open$", INSTALL)


def test_an_import_error_without_text(installed: Any) -> None:
    installed(ImportError())
    refused("cannot be imported: ImportError$", INSTALL)


@pytest.mark.parametrize("name", ["libcuda.so.1", "nvcuda.dll"])
def test_a_package_that_finds_no_driver(installed: Any, name: str) -> None:
    installed(banner(f"{name}: not found", True))
    refused(f"^there is no driver of NVIDIA on this machine: {name}: not found$", DRIVER)


def test_no_driver(installed: Any) -> None:
    installed(FakeCupy(status=gpus.INSUFFICIENT_DRIVER))
    refused("^there is no driver of NVIDIA on this machine$", DRIVER)


OLDER = "a newer driver, or install cupy-cuda12x in place of cupy-cuda13x"


@pytest.mark.parametrize(
    ("driver", "built", "message", "hint"),
    [
        (12040, 13000, "is for CUDA 12.4, and CuPy is built for CUDA 13.0", OLDER),
        (12040, 0, "is for CUDA 12.4, which is older than that of CuPy", OLDER),
        (11080, 12090, "is for CUDA 11.8, and CuPy is built for CUDA 12.9", "a newer driver"),
        (12000, 12090, "is for CUDA 12.0, and CuPy is built for CUDA 12.9", "a newer driver"),
    ],
)  # fmt: skip
def test_a_driver_that_is_too_old(installed: Any, driver: int, built: int, message: str, hint: str) -> None:
    installed(FakeCupy(status=gpus.INSUFFICIENT_DRIVER, driver=driver, built=built))
    refused(f"^the driver of NVIDIA on this machine {message}$", hint)


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (999, "CUDA does not work on this machine: cuda error 999", "does nvidia-smi work?"),
        (34, "is the stub of a CUDA toolkit", "take its folder stubs off LD_LIBRARY_PATH"),
        (803, "have different versions", "restart the machine after an update"),
        (804, "too old for the library", "take its folder compat off LD_LIBRARY_PATH"),
    ],
)
def test_a_broken_driver(installed: Any, status: int, message: str, hint: str) -> None:
    installed(FakeCupy(status=status))
    refused(message, hint)


@pytest.mark.parametrize("cupy", [FakeCupy(status=gpus.NO_DEVICE), FakeCupy(count=0)])
def test_no_gpu(installed: Any, monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy) -> None:
    installed(cupy)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    refused(
        "there is no GPU cuda:0 on this machine: CuPy finds none$", "nvidia-smi lists the GPUs that the driver sees"
    )
    for visible in ("", "7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        refused(
            f"CuPy finds none with CUDA_VISIBLE_DEVICES='{visible}'$",
            "unset CUDA_VISIBLE_DEVICES before Python starts",
        )


def test_an_unsupported_program_is_found_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    f = fg.jit(lambda x: np.real(np.exp(1j * x)), device="cuda")
    with pytest.raises(DeviceError, match="cupy is not installed") as e:
        f(X)
    assert e.value.hint is not None and "fg.show(f, x, stage='ptx') needs no GPU" in e.value.hint
    for look in (lambda: fg.show(f, X, stage="ptx"), lambda: f.lower(X).as_text("ptx")):
        with pytest.raises(UnsupportedError, match="convert of complex128 has no CUDA form yet"):
            look()


def test_no_second_gpu(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(FakeCupy())
    for visible, found, hint in ((None, "cuda:0", ""), ("0", "cuda:0 with .*='0'", ", or unset CUDA_VISIBLE_DEVICES")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(DeviceError, match=f"(?m)there is no GPU cuda:1 on this machine: CuPy finds {found}$") as e:
            fg.device_put(X, "cuda:1")
        assert e.value.hint is not None and e.value.hint.startswith(f"device='cuda:0'{hint}")


def test_no_assembler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ptx, "find_ptxas", lambda: None)
    with pytest.raises(DeviceError, match="needs NVIDIA's assembler ptxas, which is not installed") as e:
        fg.show(np.sin, X, stage="cubin")
    assert "nvidia-cuda-nvcc<13.1" in str(e.value)
    assert ".visible .entry k0" in fg.show(np.sin, X, stage="ptx")


def test_a_gpu_through_cupy(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy(count=3)
    installed(cupy)
    monkeypatch.setattr(gpus, "find_ptxas", lambda: None)
    found = fg.devices()
    assert [(d.name, d.title, d.arch, d.memory) for d in found[1:]] == [
        (f"cuda:{i}", f"Fake {i}", "sm_90", 2**34) for i in range(2)
    ]
    cupy.here.clear()
    f = fg.jit(lambda x, i: np.cumsum(x[i] * 2.0), device="cuda:1")
    np.testing.assert_array_equal(np.asarray(f(X, np.array([1, 3]))), np.cumsum(X[[1, 3]] * 2.0))
    with pytest.raises(IndexError):
        f(X, np.array([5]))
    assert set(cupy.here) == {1}


def test_a_gpu_that_is_too_old(installed: Any) -> None:
    installed(FakeCupy(count=3))
    with pytest.raises(DeviceError, match=r"cuda:2 \(Fake 2\) is sm_70: funcgrad needs a GPU of sm_75 or later") as e:
        fg.device_put(X, "cuda:2")
    assert e.value.hint is not None and e.value.hint.startswith("device 'cpu', or another of fg.devices()")


def test_machine_code_goes_to_the_driver(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(_Module, "load", lambda self, code: loaded.append(code))
    monkeypatch.setattr(gpus, "find_ptxas", lambda: "ptxas")
    monkeypatch.setattr(gpus, "assembler_version", lambda: "13.0")
    monkeypatch.setattr(gpus, "compile_cubin", lambda text, arch: f"{arch} {text}".encode())
    text = ".visible .entry k0(\n\t.param .u64 p\n)\n.maxnreg 32\n{"
    gpus.CudaDevice(FakeCupy(), 0).load(text)
    assert loaded == [b"sm_90 " + text.encode()]

    def old(self: Any, code: bytes) -> None:
        loaded.append(code)
        if code.startswith(b"sm_90"):
            raise RuntimeFault(209)  # of an assembler that is newer than the driver

    monkeypatch.setattr(_Module, "load", old)
    gpus.CudaDevice(FakeCupy(), 0).load(text)  # the driver does not say what spills: no bound of registers
    assert loaded[1:] == [b"sm_90 " + text.encode(), text.replace(".maxnreg 32\n", "").encode()]


BROKEN = {
    "old": "#!/bin/sh\necho 'fatal : Unsupported .version 8.0; current version is 7.8' >&2\nexit 255\n",
    "silent": "#!/bin/sh\n",
    "no program": "\x7fELF nothing",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_assembler_that_does_not_work(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver compiles; who asks for the assembler's report learns which one it is."""
    script = tmp_path / "ptxas"
    script.write_text(BROKEN[kind])
    script.chmod(0o755)
    for module in (ptx, gpus):
        monkeypatch.setattr(module, "find_ptxas", lambda: str(script))
    monkeypatch.setattr(gpus, "assembler_version", lambda: kind)
    loaded: list[bytes] = []
    monkeypatch.setattr(_Module, "load", lambda self, code: loaded.append(code))
    gpus.CudaDevice(FakeCupy(), 0).load("text")
    assert loaded == [b"text"]
    with pytest.raises(DeviceError, match=re.escape(f"assembler {script} does not assemble")) as e:
        fg.show(lambda x: x * 2.0, X, stage="cubin")
    assert e.value.hint is not None and "CUDA 12.0 or later" in e.value.hint


def test_the_newest_assembler_of_several_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names do not say which it is: nvidia/cuda_nvcc is of CUDA 12, nvidia/cu13 of CUDA 13."""
    for name, release in (("cuda_nvcc", "V12.9.86"), ("cu13", "V13.0.88")):
        script = tmp_path / "nvidia" / name / "bin" / "ptxas"
        script.parent.mkdir(parents=True)
        script.write_text(f"#!/bin/sh\necho 'release, {release}'\n")
        script.chmod(0o755)
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert ptx.find_ptxas.__wrapped__() == str(tmp_path / "nvidia" / "cu13" / "bin" / "ptxas")


def test_cpu_code_looks_for_no_gpu() -> None:
    code = (
        "import sys, numpy as np, funcgrad as fg\n"
        "x = np.ones(3)\n"
        "f = fg.jit(fg.value_and_grad(lambda x: np.sum(np.sin(x) * 2)))\n"
        "f(x), f(x), fg.vmap(np.cos)(x), fg.device_put(x, 'cpu')\n"
        "assert not any(name.startswith('funcgrad.lowering.cuda') for name in sys.modules)\n"
        "fg.show(np.sin, x, stage='ptx'), fg.devices()\n"
        "bad = {'cupy', 'cuda', 'numba', 'numba_cuda', 'nvidia', 'pynvml'}\n"
        "print('found', *sorted(bad & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].split() == ["found"]
