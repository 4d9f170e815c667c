"""Which of the paper's variants a layer is, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Transform = Literal["hyper", "mlp"]
Order = Literal["parallel", "inverse_then_self", "self_then_inverse"]


@dataclass(frozen=True)
class Variant:
    """How the two branches are made and joined; the default is the paper's.

    Raises:
        ValueError: a lambda outside 0 to 1, an unknown name, or choices that do not go together, with the reason.
    """

    weight: float = 0.5  #: lambda, the share of self-attention; 0 is MISA
    learned: bool = False  #: lambda is learned, one per layer, and starts at `weight`
    norm: bool = False  #: each branch is normalized over the tokens, channel by channel, before the two are mixed
    transform: Transform = "hyper"  #: of the query by a value: the hypernetwork, or an MLP of equal size (the ablation)
    order: Order = "parallel"  #: both on the same tokens, or one on what the other puts out
    separate: bool = False  #: the inverse branch has its own queries, keys and output projection
    identity: bool = (
        False  #: divide by lambda and start with an inverse branch that puts out zero: a host starts unchanged
    )

    def __post_init__(self) -> None:
        for name, choices in (("transform", get_args(Transform)), ("order", get_args(Order))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight is lambda, from 0 (the inverse branch alone) to 1, not {self.weight}")
        if self.learned and self.weight in (0, 1):
            raise ValueError(f"learned lambda is a sigmoid, which never is {self.weight:g}; start it between 0 and 1")
        if self.identity and self.weight == 0:
            raise ValueError("identity needs self-attention to start from, and weight=0 has none")
        if self.identity and self.norm:
            raise ValueError("identity and norm exclude each other: normalized heads are not the host's")
        if self.separate and self.weight == 0:
            raise ValueError("separate with weight=0 would leave nothing of the host's attention in use")
        if self.order != "parallel":
            self._check_sequential()

    def _check_sequential(self) -> None:
        wrong = [name for name in ("learned", "norm", "separate", "identity") if getattr(self, name)]
        if self.weight != 0.5:
            wrong.append("weight")
        if wrong:
            raise ValueError(
                f"{wrong[0]} is about how the branches are mixed, and with order={self.order} nothing is mixed; "
                "use order=parallel"
            )

    @property
    def attends(self) -> bool:
        """Whether self-attention has a part in it."""
        return self.weight > 0


PAPER = Variant()
