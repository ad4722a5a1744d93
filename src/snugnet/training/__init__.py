"""Training: one loop, many methods.

`train(model, data, method)` is the entry; `methods` holds the recipes, `load` the data sets, `accuracy` the score.
"""

from snugnet.data.dataset import Data
from snugnet.evaluate.scoring import accuracy
from snugnet.training import methods
from snugnet.training.run import TrainResult, finetune, train

__all__ = ["Data", "TrainResult", "accuracy", "finetune", "methods", "train"]
