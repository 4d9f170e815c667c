"""Host adapters: each maps one family of models onto the attention interface. A new family is a new file and a line."""

from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.find import Host, find_host, forget
from attngraft.hosts.registry import host_adapters, missing_hosts, patched_class, register_host

__all__ = [
    "Host",
    "HostAdapter",
    "Site",
    "find_host",
    "forget",
    "host_adapters",
    "missing_hosts",
    "patched_class",
    "register_host",
]
