"""Methods without a demonstrated gain: samples that repel each other (ODD), and editing of written tokens.

They are tested, and their presets are accepted wherever a policy is; `twotemp policies` lists them apart.
"""
