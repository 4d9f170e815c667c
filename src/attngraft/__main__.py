"""`python -m attngraft`, which `torchrun -m` and `accelerate launch -m` use."""

from attngraft.cli import main

if __name__ == "__main__":
    main()
