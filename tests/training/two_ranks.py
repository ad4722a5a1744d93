"""Started by torchrun in test_processes: trains the stand-in and leaves its weights, and each rank's own, in a folder."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from snugnet.training import methods, train

sys.path.insert(0, str(Path(__file__).parents[1]))
from toy_method import Bilevel

from standin import Standin, toy_data

PHASES = [
    methods.multipath(epochs=3, auto_augment="cifar10", crop_padding=1, clip_norm=5.0),
    methods.singlepath(epochs=2, auto_augment=None),
    Bilevel(epochs=2, auto_augment=None, second_batch=8),
    methods.attentive(epochs=1, auto_augment=None, warmup_epochs=0, rows=1000),
]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    net = Standin(seed=rank)  # the ranks start apart; the first one's weights must win
    train(net, toy_data(), PHASES, batch=48, out=out / "run", evaluator=None, device="cpu", trackers=())
    save_file({name: t.contiguous() for name, t in net.state_dict().items()}, out / f"rank{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
