"""In the place of SGLang's compiled kernels: every name can be imported, and whoever calls one hears which it was.

SGLang imports them by the dozen and, with `attention_backend="torch_native"` on a CPU without AMX, calls none.
"""

import importlib.abc
import importlib.machinery
import sys


class Missing:
    """Something of the kernels; what is in it is missing, too."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.__name__} is a stub: SGLang has no kernels on this machine")


__getattr__ = Missing("sgl_kernel").__getattr__


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`sgl_kernel.anything` is the same again."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__


sys.meta_path.append(Submodules())
