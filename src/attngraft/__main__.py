"""`python -m attngraft`, for launchers that start modules (`accelerate launch -m attngraft train ...`)."""

from attngraft.cli import main

main()
