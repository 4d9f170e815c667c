"""The identity as a graft: its input is its output.

    y = x

It has no parameters and draws no random numbers, so a run with it must equal the host's run. That makes it the control of
every comparison: grafted modules, training, predictions and statistics all take part, and the difference must be exactly 0.

    attngraft compare --recipe digits --graft identity --seeds 2 --out control
"""
