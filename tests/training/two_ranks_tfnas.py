"""Started by torchrun in test_tfnas: a search by two processes, which leave what they came to in a folder."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from snugnet.training import train

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_tfnas import BUDGET, METHOD, OPTIONS, supernet

from standin import toy_data


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    net = supernet(seed=rank)  # the ranks start apart; the first one's weights must win
    train(net, toy_data(), METHOD, budget=BUDGET, out=out / "run", **OPTIONS)
    save_file({name: t.contiguous() for name, t in net.state_dict().items()}, out / f"rank{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
