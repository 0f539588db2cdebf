"""Graders by name; `base` has their protocol and registry."""

from twotemp.graders.base import GRADERS, Grader, descriptions, get, grades

__all__ = ["GRADERS", "Grader", "descriptions", "get", "grades"]
