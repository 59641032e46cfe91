"""How much GPU memory a training step takes, byte by byte, before anything runs."""

__version__ = "0.1.0"
