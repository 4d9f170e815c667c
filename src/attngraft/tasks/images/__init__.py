"""Images: sources, transforms, splits and checks, independent of the kind of labels.

`config.py` defines the recipe sections, `sources/` finds and opens images, `inputs.py` describes the host's input,
`transforms.py` produces that input, `splits.py` provides examples to the engine, and `checks.py` finds problems in data.
"""
