"""An OpenAI-compatible server that batches requests as they arrive, and a page to play with policies."""

from twotemp.serving.app import Server, served_name
from twotemp.serving.bodies import Limits

__all__ = ["Limits", "Server", "served_name"]
