"""Adapters to evaluation harnesses: twotemp as one of their models, and their results as a twotemp run.

The adapters only translate names; encoding, requests and sampling are those of the rest of the package. A harness is
imported only when it is used.
"""
