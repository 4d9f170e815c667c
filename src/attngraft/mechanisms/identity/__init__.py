"""Nothing at all, as a graft: what stands at a hook point goes on as it is.

    y = x

It has no parameters and draws no random number, so a run with it must be the host's run. That makes it the control of every
comparison: grafted modules, training, predictions and statistics are all in its way, and the difference must be exactly 0.

    attngraft compare --recipe digits --graft identity --seeds 2 --out control

`graft` is all there is.
"""
