"""How good is a network? One answer for training curves, search, ranking and fine-tuning."""
