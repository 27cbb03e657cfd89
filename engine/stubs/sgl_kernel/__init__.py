"""Stands in for the compiled package ``sgl_kernel`` where no build of it exists (SGLang publishes none for
the CPU).

SGLang imports names from it at import time and calls none of them on the path that the lab uses
(``torch_native`` attention). So every name resolves, at any depth, and calling one says which kernel was
wanted: a missing kernel can never pass for a working one.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import NoReturn

__version__ = "0.4.10"


class _Kernel:
    """An inert name. Attributes give further inert names; a call raises RuntimeError with the full name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> "_Kernel":
        return _resolve(self.__name__, attribute)

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"{self.__name__} was called, but sgl_kernel is a stub here: this path needs a GPU build"
        )


def _resolve(parent: str, attribute: str) -> _Kernel:
    if attribute.startswith("__"):  # protocol probes (__path__, __wrapped__ …) must see an ordinary object
        raise AttributeError(f"{parent} has no attribute {attribute}")
    return _Kernel(f"{parent}.{attribute}")


def __getattr__(attribute: str) -> _Kernel:
    return _resolve(__name__, attribute)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``sgl_kernel.<anything>`` as an empty package whose names resolve like the package's own."""

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = lambda attribute: _resolve(spec.name, attribute)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the names resolve on demand."""


sys.meta_path.append(_Submodules())
