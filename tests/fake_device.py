"""A second device on a machine that has one: fails where CUDA would, and computes on the CPU.

    with fake_device():
        supernet.to(CUDA)                     # its weights are now "on the device", `.device` says cuda:0
        supernet(images, architecture)        # DeviceMixing: the images are not
        supernet(images.to(CUDA), architecture)

A tensor is on the device if its storage carries a mark: views, parameters and `.data` share storage, so they share the
mark. Two layers keep it true. Calls of torch's Python functions are checked: two operands on different places raise, as on
a GPU, except where a GPU allows it (copy_, a CPU scalar, a CPU index into a tensor on the device). Below autograd, every
kernel passes the mark from its inputs to its outputs, so gradients carry it too. `moves` counts copies to and from the
device. Code that starts Fabric itself is led here by `fake_cuda(monkeypatch)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
_COPIES = {"copy_", "_foreach_copy_", "set_", "backward", "grad", "__set__", "_has_compatible_shallow_copy_type"}
_INDEXED = {"__getitem__", "__setitem__", "index_put_", "index_put"}
_STRICT = {"cat", "stack", "concat", "vstack", "hstack"}


class DeviceMixing(RuntimeError):
    """Tensors on two devices met in one operation."""


def on_device(tensor: Tensor) -> bool:
    """Whether the tensor's storage is marked."""
    with torch._C.DisableTorchFunction():
        return hasattr(tensor.untyped_storage(), "_on_fake_device")


def _mark(tensor: Tensor) -> None:
    with torch._C.DisableTorchFunction():
        tensor.untyped_storage()._on_fake_device = True


def _tensors(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class _Kernels(TorchDispatchMode):
    """Passes the mark on, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.copying = False  # a copy from one place to the other: the mark stays behind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        stays = self.copying or func.__name__.startswith(("copy_", "_foreach_copy_"))
        if not stays and any(on_device(tensor) for tensor in _tensors(args, kwargs)):
            for tensor in _tensors(result):
                _mark(tensor)
        return result


class FakeDevice(TorchFunctionMode):
    """Checks calls, and answers those that speak of devices."""

    def __init__(self, kernels: _Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.moves = {"to": 0, "from": 0}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and args:
            return self._attribute(func, args)
        if name in ("to", "cpu", "cuda") and args and isinstance(args[0], Tensor):
            return self._to(name, func, args, kwargs)
        if name in ("numpy", "__array__") and on_device(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
        if name == "__deepcopy__":  # copies the storage without a kernel
            twin = func(*args, **kwargs)
            if on_device(args[0]):
                _mark(twin)
            return twin
        _check(name, args, kwargs)
        device = kwargs.get("device") if name != "device" and func is not torch._C._nn._parse_to else None
        if device is None:
            return func(*args, **kwargs)
        result = func(*args, **{**kwargs, "device": "cpu"})
        return self._placed(result, torch.device(device).type == "cuda")

    def _attribute(self, func: Any, args: Any) -> Any:
        owner = getattr(func, "__self__", None)
        if owner is Tensor.device and on_device(args[0]):
            return CUDA
        if owner is Tensor.is_cuda:
            return on_device(args[0])
        return func(*args)

    def _to(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        tensor, rest = args[0], args[1:]
        other = next((value for value in (*rest, *kwargs.values()) if isinstance(value, Tensor)), None)
        if name != "to":
            wanted = name == "cuda"
            result = tensor
        elif other is not None:
            wanted = on_device(other)
            result = tensor.to(dtype=other.dtype)
        else:
            device, dtype, _, layout = torch._C._nn._parse_to(*rest, **{k: v for k, v in kwargs.items() if k != "copy"})
            wanted = on_device(tensor) if device is None else device.type == "cuda"
            options = {"memory_format": layout} if layout is not None else {}
            result = tensor.to(dtype=dtype or tensor.dtype, copy=kwargs.get("copy", False), **options)
        return self._placed(result, wanted)

    def _placed(self, tensor: Tensor, wanted: bool) -> Tensor:
        """The tensor itself if it is there already, else a copy that is."""
        if on_device(tensor) == wanted:
            return tensor
        self.moves["to" if wanted else "from"] += 1
        self.kernels.copying = True
        try:
            moved = tensor.clone()
        finally:
            self.kernels.copying = False
        if wanted:
            _mark(moved)
        return moved


def _check(name: str, args: Any, kwargs: Any) -> None:
    if name in _COPIES:
        return
    operands = _tensors(args, kwargs)
    if name in _INDEXED and operands and on_device(operands[0]):
        last = args[-1] if name == "__setitem__" else None
        operands = [operands[0], *([last] if isinstance(last, Tensor) else [])]  # indices may be on the CPU
    places = {on_device(operand) for operand in operands if on_device(operand) or operand.ndim or name in _STRICT}
    if len(places) == 2:
        shapes = ", ".join(f"{list(o.shape)} on {'cuda:0' if on_device(o) else 'cpu'}" for o in operands)
        raise DeviceMixing(f"{name}: expected all tensors to be on the same device, got {shapes}")


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Inside, `.to("cuda")` works and mixing raises."""
    with _Kernels() as kernels, FakeDevice(kernels) as device:
        yield device


class _FakeFabric(Fabric):
    """Fabric on the CPU that believes in its GPU."""

    @property
    def device(self) -> torch.device:
        return CUDA


def fake_cuda(monkeypatch: Any) -> None:
    """Training takes the fake device for the machine's GPU."""
    from snugnet.training import gradient_sync

    def start(device: str, precision: str) -> Fabric:
        fabric = _FakeFabric(accelerator="cpu", devices=1, precision="32-true")
        fabric.launch()
        return fabric

    monkeypatch.setattr(gradient_sync, "start", start)
