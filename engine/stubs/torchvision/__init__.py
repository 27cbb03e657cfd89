"""Replaces torchvision's own ``__init__`` in the CPU environment.

The published torchvision is compiled against another torch than the CPU build; importing its operators fails
("operator torchvision::nms does not exist"). SGLang imports torchvision for image transforms only, which are
Python.
"""

from . import io, transforms
from .version import __version__

__all__ = ["__version__", "io", "transforms"]
