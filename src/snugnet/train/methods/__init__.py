"""Training methods, one file each: `methods.multipath(epochs=100)` is a frozen recipe for one phase of `train`."""

from snugnet.train.methods._heaviest import Heaviest as heaviest
from snugnet.train.methods._multipath import Multipath as multipath
from snugnet.train.methods._plain import finetune, scratch
from snugnet.train.methods._singlepath import Singlepath as singlepath

METHODS = {
    "finetune": finetune,
    "heaviest": heaviest,
    "multipath": multipath,
    "scratch": scratch,
    "singlepath": singlepath,
}

__all__ = ["METHODS", "finetune", "heaviest", "multipath", "scratch", "singlepath"]
