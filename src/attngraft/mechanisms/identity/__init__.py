"""The identity as a graft: it returns its input.

    y = x

It has no parameters and draws no random numbers, so a run with it must equal the host's run. It is the control for every
comparison: grafted modules, training, predictions and statistics are all exercised, and the difference must be exactly 0.

    attngraft compare --recipe digits --graft identity --seeds 2 --out control
"""
