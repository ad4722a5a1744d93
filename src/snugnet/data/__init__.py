"""Data sets: images and labels in splits, their sources and their augmentation."""

from snugnet.data.dataset import Data, load

__all__ = ["Data", "load"]
