"""Read by every Python that has this folder on its path: what SGLang imports and a machine without a GPU lacks.

torchvision's wheel has no operators for a torch without CUDA, and says so when it is imported. SGLang imports it, and
for text calls nothing of it; so the two operators that are looked up are declared just before, without any code.
"""

import importlib.abc
import sys

OPERATORS = "nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            sys.modules[__name__].library = library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                library.define(operator)
        return


sys.meta_path.insert(0, BeforeTorchvision())
