"""An experiment runner for low-rank, compressed and pruned training."""

__version__ = "0.2.0"
