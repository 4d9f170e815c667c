"""Entry point of `python -m attngraft`, also for launchers (`accelerate launch -m attngraft train ...`)."""

from attngraft.cli import main

main()
