"""The least that pyinfra's own connector takes: a connection to each host, and one command."""

from pyinfra import host
from pyinfra.facts.server import Command

host.get_fact(Command, "true")
