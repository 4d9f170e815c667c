"""Host adapters: each reads one family of models as the anatomy's sentences. A new family is a new file and a line."""

from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.registry import Host, find_host, forget, host_adapters, missing_hosts, patched_class, register_host

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
