"""Host adapters: each maps one model family onto the attention interface.

To support a new family, add a file with its adapter and list its name in `registry.PACKAGES`.
"""

from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.find import Host, check_module, find_host, forget
from attngraft.hosts.hosted import HostedModel, host_of
from attngraft.hosts.parts import ModelParts, model_parts
from attngraft.hosts.registry import host_adapters, missing_hosts, patched_class, register_host

__all__ = [
    "Host",
    "HostAdapter",
    "HostedModel",
    "ModelParts",
    "Site",
    "check_module",
    "find_host",
    "forget",
    "host_adapters",
    "host_of",
    "missing_hosts",
    "model_parts",
    "patched_class",
    "register_host",
]
