"""Models that consist of a host and modules around it."""

from torch import nn


class HostedModel(nn.Module):
    """A grafted host with a neck, decoder or head around it.

    Specifications and graft files use the host's own paths. Modules outside of `host` are new parts,
    which are trained together with the head.
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host


def host_of(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the host in `model` and its prefix in parameter names; `model` and "" without `HostedModel`."""
    return (model.host, "host.") if isinstance(model, HostedModel) else (model, "")
