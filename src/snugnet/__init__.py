"""snugnet: you say what the network may cost, and get the most accurate network that costs no more."""

__version__ = "0.1.0"
