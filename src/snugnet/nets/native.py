"""Kernels in C++ for training on a processor, compiled once by the system's compiler, if there is one.

    kernels = native.library()        # None: no compiler, another system, SNUGNET_NATIVE=0; the caller takes torch's way

Plain C++ over float pointers (`kernels/*.cpp`): no headers of torch or Python, so it compiles in seconds and loads with
ctypes, which leaves the interpreter free meanwhile. The library lies in the user's cache folder under a name made of all
that it depends on: source, flags, compiler, torch and the processor, since a home folder may be shared by machines. It
ends with a digest of itself: a damaged one is never loaded, but made anew. Nothing but time is lost where this fails.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

_SOURCES = Path(__file__).with_name("kernels")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_PATIENCE = 120  # seconds for a compiler

_pointer, _index, _int, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_NORM = [_pointer] * 4 + [_float, _float, _int, _pointer, _pointer, _index, _int]
_NORM_BACKWARD = [_pointer, _pointer, _int, _pointer, _pointer, _index, _pointer, _pointer, _int]
_SIGNATURES = {
    "norm_forward": [_pointer, _pointer, _index, _index, _index, *_NORM],
    "norm_backward": [_pointer] * 3 + [_index] * 3 + _NORM_BACKWARD,
    "scale_forward": [_pointer] * 3 + [_index] * 3 + [_int],
    "scale_backward": [_pointer] * 5 + [_index] * 3 + [_int],
    "depthwise_forward": [_pointer] * 5 + _NORM,
    "depthwise_backward": [_pointer] * 7 + _NORM_BACKWARD,
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they cannot be had."""
    if os.environ.get("SNUGNET_NATIVE", "1") == "0" or platform.system() != "Linux":
        return None
    try:
        path = _built()
        loaded = ctypes.CDLL(str(path))
        for name, types in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = types, None
        return loaded
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None


def fits(x: Tensor) -> bool:
    """Whether the kernels take this tensor: an ordinary float32 one on the processor, in channels-last memory."""
    if type(x) not in _PLAIN or not x.is_cpu or x.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined]
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and x.numel() > 0 and library() is not None


def has_kernel(weight: Tensor, stride: int) -> bool:
    """Whether depthwise convolutions by this weight are among those compiled."""
    return (
        weight.shape[-1] in (3, 5, 7) and stride in (1, 2) and weight.is_contiguous() and weight.dtype == torch.float32
    )


def loaded() -> ctypes.CDLL:
    """The kernels, for who knows that they are there."""
    kernels = library()
    assert kernels is not None
    return kernels


Sizes = ctypes.c_int64 * 9  # images, channels, height, width, height and width of the output, kernel, stride, padding

_PLAIN = (Tensor, torch.nn.Parameter)  # nothing that only looks like a tensor, such as a tracer's


def _built() -> Path:
    """The library's file, compiled unless it is there and whole."""
    compiler, runtime = _compiler(), _openmp()
    sources = sorted(_SOURCES.glob("*.cpp"))
    parts = [path.read_bytes() for path in sorted(_SOURCES.iterdir()) if path.suffix in (".cpp", ".h")]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=_PATIENCE).stdout
    parts += [
        " ".join((compiler, *_FLAGS)).encode(),
        version,
        torch.__version__.encode(),
        _processor(),
        str(runtime).encode(),
    ]
    key = hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:24]
    for folder in (_cache_folder(), Path(tempfile.gettempdir()) / f"snugnet-{os.getuid()}"):
        path = folder / f"kernels-{key}.so"
        if _whole(path):
            return path
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                continue
            with tempfile.TemporaryDirectory(dir=folder) as work:
                finished = _compile(compiler, runtime, sources, Path(work))
                finished.replace(path)  # whoever is last wins, with the same library
            return path
        except PermissionError:
            continue
    raise PermissionError("no folder to keep the kernels in")


def _compile(compiler: str, runtime: Path, sources: list[Path], work: Path) -> Path:
    """Each source by a process of its own, then one library of them, with its digest behind it."""
    objects = [work / f"{source.stem}.o" for source in sources]
    commands = [[compiler, *_FLAGS, "-c", str(source), "-o", str(o)] for source, o in zip(sources, objects)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = [subprocess.Popen(command, **quiet) for command in commands]  # type: ignore[call-overload]
    try:
        codes = [process.wait(timeout=_PATIENCE) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(codes):
        raise subprocess.CalledProcessError(max(codes), commands[0])
    result = work / "kernels.so"
    # Not -fopenmp here: it would bring the compiler's own runtime, whose threads would wait beside torch's.
    link = [compiler, "-shared", *map(str, objects), str(runtime), "-o", str(result)]
    subprocess.run(link, check=True, timeout=_PATIENCE, **quiet)  # type: ignore[call-overload]
    content = result.read_bytes()
    result.write_bytes(content + hashlib.sha256(content).digest())
    return result


def _whole(path: Path) -> bool:
    """Whether the file ends with the digest of what comes before."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise FileNotFoundError("no C++ compiler")


def _openmp() -> Path:
    """The OpenMP runtime that torch itself has loaded: one pool of threads serves both."""
    maps = Path("/proc/self/maps").read_text()
    loaded = {Path(file) for file in re.findall(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*)$", maps, re.MULTILINE)}
    own = Path(torch.__file__).resolve().parent
    for path in sorted(loaded, key=lambda path: (own not in path.parents, str(path))):
        return path
    raise FileNotFoundError("torch runs without OpenMP")


def _processor() -> bytes:
    """Model and abilities of the processor: code for one may not run on another."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    told = [line for line in lines if line.split("\t")[0].strip(" :").lower() in _TOLD]
    return "\n".join([platform.machine(), *told]).encode()


_TOLD = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags", "features"}
_TOLD |= {"cpu implementer", "cpu architecture", "cpu variant", "cpu part"}


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snugnet"
