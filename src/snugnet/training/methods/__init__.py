"""Training methods: `methods.multipath(epochs=100)` is a frozen recipe for one phase of `train`."""

from collections.abc import Callable

from snugnet.training.method import Method
from snugnet.training.methods._plain import finetune, scratch
from snugnet.training.methods._sandwich import Alpha as alpha
from snugnet.training.methods._sandwich import Attentive as attentive
from snugnet.training.methods._sandwich import Sandwich as sandwich
from snugnet.training.methods._supernet import Classifier as classifier
from snugnet.training.methods._supernet import Largest as largest
from snugnet.training.methods._supernet import Multipath as multipath
from snugnet.training.methods._supernet import Singlepath as singlepath
from snugnet.training.methods._supernet import inherit_kernels, se_bias_init
from snugnet.training.methods._tfnas import TfNas as tfnas

# Phases of training a super-network, for recipes; finetune and scratch are for plain networks.
PHASES: dict[str, type[Method]] = {
    "alpha": alpha,
    "attentive": attentive,
    "classifier": classifier,
    "largest": largest,
    "multipath": multipath,
    "sandwich": sandwich,
    "singlepath": singlepath,
    "tfnas": tfnas,
}
METHODS: dict[str, Callable[..., Method]] = {**PHASES, "finetune": finetune, "scratch": scratch}
# Keys and names that recipes had before, and what they are called now.
RENAMED = {
    "shift": "crop_padding",
    "mirror": "hflip",
    "open_gates": "se_bias_init",
    "ramp_epochs": "curriculum_epochs",
    "heaviest": "largest",
    "judge_times": "eval_times",
}

__all__ = [
    "METHODS",
    "PHASES",
    "RENAMED",
    "alpha",
    "attentive",
    "classifier",
    "finetune",
    "inherit_kernels",
    "largest",
    "multipath",
    "sandwich",
    "scratch",
    "se_bias_init",
    "singlepath",
    "tfnas",
]
