"""Training methods, one file each: `methods.multipath(epochs=100)` is a frozen recipe for one phase of `train`."""

from collections.abc import Callable

from snugnet.training.method import Method
from snugnet.training.methods._largest import Largest as largest
from snugnet.training.methods._multipath import Multipath as multipath
from snugnet.training.methods._plain import finetune, scratch
from snugnet.training.methods._preparing import inherit_kernels, se_bias_init
from snugnet.training.methods._singlepath import Singlepath as singlepath

# Phases of training a super-network, for recipes; finetune and scratch are for plain networks.
PHASES: dict[str, type[Method]] = {"largest": largest, "multipath": multipath, "singlepath": singlepath}
METHODS: dict[str, Callable[..., Method]] = {
    "finetune": finetune,
    "largest": largest,
    "multipath": multipath,
    "scratch": scratch,
    "singlepath": singlepath,
}

__all__ = [
    "METHODS",
    "PHASES",
    "finetune",
    "inherit_kernels",
    "largest",
    "multipath",
    "scratch",
    "se_bias_init",
    "singlepath",
]
