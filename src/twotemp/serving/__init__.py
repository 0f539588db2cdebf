"""Serve a model over an OpenAI-compatible API, with a page that compares policies."""

from twotemp.serving.app import Server, served_name
from twotemp.serving.bodies import Limits

__all__ = ["Limits", "Server", "served_name"]
