"""`python -m snugnet ...`: the command line, also for torchrun (`torchrun --nproc-per-node 2 -m snugnet run RECIPE`)."""

from snugnet.cli import main

main()
