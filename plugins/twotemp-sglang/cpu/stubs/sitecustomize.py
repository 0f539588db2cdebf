"""Let torchvision be imported without a GPU; every Python with this folder on its path runs this file.

torchvision's wheel has no operators for a torch without CUDA and fails when it is imported. SGLang imports it but
never calls it for text, so the two operators that torchvision looks up are declared just before, without an
implementation.
"""

import importlib.abc
import sys

OPERATORS = "nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"


class TorchvisionHook(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is first imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            sys.modules[__name__].library = library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                library.define(operator)
        return


sys.meta_path.insert(0, TorchvisionHook())
