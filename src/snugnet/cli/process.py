"""How the process of a verb begins and ends: what it would spend on things that a verb does not need.

Another budget of a trained run is answered in seconds, half of which were the interpreter's: collections of garbage while
hundreds of thousands of objects are imported, none of them garbage; torch's kernels for tensors without data, in Python;
taking all of it apart in the end; and linear algebra on a hundred numbers by several threads, which takes seconds beside
other programs (docs/LOG.md). All of this is for the command line only: importing the package changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn, final

_COLLECT_AFTER = 500_000  # new objects: a verb with torch imports 330,000
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_QUICK = ("search", "front")  # verbs that answer in seconds, and only run networks
_SOLVING = (*_QUICK, "many", "run", "fit")
_ON_USE = "torch._meta_registrations"  # what export and compilation need, and nothing that runs networks: 0.2 s


def prepare(verb: str | None) -> None:
    """Before anything large is imported."""
    gc.set_threshold(_COLLECT_AFTER)
    if verb in _SOLVING and _BLAS_THREADS not in os.environ:
        # Only while numpy is loaded: torch has a copy of the library on some processors, and is told its threads.
        os.environ[_BLAS_THREADS] = "1"
        importlib.import_module("numpy")
        del os.environ[_BLAS_THREADS]
    if verb in _QUICK and "torch" not in sys.modules:
        sys.meta_path.insert(0, _OnUse())


def leave(verb: str | None, code: int) -> NoReturn:
    """End the process; after a quick verb without taking every module apart, which is a tenth of a second."""
    gc.freeze()  # or the interpreter's last collection looks at all of torch: another tenth
    if verb in _QUICK:
        ending: Any = (threading, atexit)  # both calls are the interpreter's own, and have no public name
        ending[0]._shutdown()
        ending[1]._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, by who read it or by us
                stream.flush()
        os._exit(code)
    sys.exit(code)


@final
class _OnUse:
    """A finder that lets one module be run when something of it is asked for, not when it is imported.

    `importlib.util.LazyLoader` would run it as soon as `inspect` looks for the file of any module, as torch does."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        spec: ModuleSpec | None = PathFinder.find_spec(name, path) if name == _ON_USE else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _LaterLoader(spec.loader.name, spec.loader.path)
        return spec


@final
class _LaterLoader(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet: `_Later` does it."""


@final
class _Later(ModuleType):
    """A module that is run on the first look at a name it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        loader = self.__spec__.loader if self.__spec__ else None
        assert isinstance(loader, SourceFileLoader)
        SourceFileLoader.exec_module(loader, self)
        return getattr(self, name)
