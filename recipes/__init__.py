"""The recipes of the embedded models and the code that trains them. Not part of the wheel.

`python -m recipes tiny.yaml --out runs/tiny` trains a miniature LLaDA on the generated tasks;
`python -m recipes verifier.yaml --out runs/verifier` trains the verifier of its answers.
"""
