"""Methods without a demonstrated gain: samples that repel each other (ODD), editing, and search in groups of rows.

They are tested, and their presets are accepted wherever a policy is; `twotemp policies` lists them apart.
"""
