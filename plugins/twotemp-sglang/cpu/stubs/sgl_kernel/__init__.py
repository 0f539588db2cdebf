"""A stub of SGLang's compiled kernels: every name can be imported, and a call raises an error with the name.

SGLang imports many of them and, with `attention_backend="torch_native"` on a CPU without AMX, calls none.
"""

import importlib.abc
import importlib.machinery
import sys


class MissingKernel:
    """A name in the kernels; its attributes are missing kernels as well."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.__name__} is a stub: SGLang has no kernels on this machine")


__getattr__ = MissingKernel("sgl_kernel").__getattr__


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides every submodule `sgl_kernel.NAME` as the same stub."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__


sys.meta_path.append(Submodules())
