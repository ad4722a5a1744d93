"""Training methods, one file each: `methods.multipath(epochs=100)` is a frozen recipe for one phase of `train`."""

from collections.abc import Callable

from snugnet.train.method import Method
from snugnet.train.methods._heaviest import Heaviest as heaviest
from snugnet.train.methods._multipath import Multipath as multipath
from snugnet.train.methods._plain import finetune, scratch
from snugnet.train.methods._preparing import inherit_kernels, open_gates
from snugnet.train.methods._singlepath import Singlepath as singlepath

# Phases of training a super-network, for recipes; finetune and scratch are for plain networks.
PHASES: dict[str, type[Method]] = {"heaviest": heaviest, "multipath": multipath, "singlepath": singlepath}
METHODS: dict[str, Callable[..., Method]] = {
    "finetune": finetune,
    "heaviest": heaviest,
    "multipath": multipath,
    "scratch": scratch,
    "singlepath": singlepath,
}

__all__ = [
    "METHODS",
    "PHASES",
    "finetune",
    "heaviest",
    "inherit_kernels",
    "multipath",
    "open_gates",
    "scratch",
    "singlepath",
]
