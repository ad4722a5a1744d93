"""Training: one loop, many methods.

`train(model, data, method)` is the entry; `methods` holds the recipes, `load` the data sets, `accuracy` the verdict.
"""

from snugnet.train import methods
from snugnet.train.data import Data, load
from snugnet.train.evaluate import accuracy
from snugnet.train.run import TrainResult, finetune, train

__all__ = ["Data", "TrainResult", "accuracy", "finetune", "load", "methods", "train"]
