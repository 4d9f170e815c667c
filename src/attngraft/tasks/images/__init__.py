"""Images: sources, transforms, splits and checks, shared by tasks with any kind of labels.

`config.py` has their recipe sections; `sources/` finds and opens images; `inputs.py` describes the host's input and
`transforms.py` makes it; `splits.py` provides examples to the engine; `checks.py` finds problems in data.
"""
