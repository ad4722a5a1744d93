"""The kernels' library: made once, never loaded when damaged, and nothing is lost where it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from snugnet.nets import native

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
TRAIN = """
import torch
from snugnet.nets import build, native
from snugnet.space import preset, smallest
space = preset("hardcore-lowres", classes=10)
torch.manual_seed(0)
network = build(smallest(space), space).to(memory_format=torch.channels_last).train()
images = torch.randn(8, 3, 28, 28).to(memory_format=torch.channels_last)
network(images).square().mean().backward()
print("kernels" if native.library() else "torch", float(network.stem.conv.weight.grad.norm()))
"""


def run(cache: Path, **more: str) -> tuple[str, float]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    which, norm = done.stdout.split()
    return which, float(norm)


def libraries(cache: Path) -> list[Path]:
    return sorted((cache / "snugnet").glob("*"))


@needs_compiler
def test_two_processes_compile_at_once_and_a_damaged_library_is_made_anew(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, [tmp_path, tmp_path])
    assert first == second and first[0] == "kernels"
    (file,) = libraries(tmp_path)  # nothing else is left behind
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert run(tmp_path) == first
    assert native._whole(file)


def test_without_a_compiler_or_where_it_is_switched_off_torch_trains(tmp_path):
    usual = run(tmp_path, SNUGNET_NATIVE="0")
    without = run(tmp_path, PATH=str(tmp_path), CXX="")
    assert usual == without and usual[0] == "torch"
    assert not libraries(tmp_path)
    if native.library() is not None:
        assert run(tmp_path)[1] == pytest.approx(usual[1], rel=1e-3)


def test_a_compiler_that_fails_is_no_error(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert run(tmp_path, CXX=str(broken), TMPDIR=str(tmp_path))[0] == "torch"


@needs_compiler
def test_one_openmp_runtime_serves_torch_and_the_kernels():
    torch.ones(4).sum()
    maps = Path("/proc/self/maps").read_text().splitlines()
    own = str(Path(torch.__file__).resolve().parent)
    loaded = {line.split()[-1] for line in maps if "/libgomp" in line or "/libiomp" in line}
    assert str(native._openmp()) in loaded
    assert str(native._openmp()).startswith(own) or not any(path.startswith(own) for path in loaded)
    needed = subprocess.run(["readelf", "-d", str(native._built())], capture_output=True, text=True, check=False).stdout
    assert needed.count("omp") <= 1
