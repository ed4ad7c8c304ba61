"""Reads what serves SGLang on a node by hand: one remote command that changes nothing."""

from __future__ import annotations

from pyinfra.api import StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.api.host import Host

from operations.remote import whole
from plans.adopt.gathered import Gathered, program, read_gathered

LIMIT_S = 180
"""Seconds after which a node that does not answer is given up."""


def gathered_from(host: Host) -> Gathered:
    """Return what the node told. Raises NotGathered where it did not come to its end.

    The program travels over standard input. Neither it nor what it prints is shown at any
    verbosity: environments and argument lists of other people's servers hold their keys.
    """
    given, _ = pop_global_arguments(host.state, host, {})
    arguments = {key: value for key, value in given.items() if key in CONNECTOR_ARGUMENT_KEYS}
    _, output = host.run_shell_command(
        StringCommand(": sglang-adopt; exec sh -s"),
        print_output=False,
        print_input=False,
        **{**arguments, "_stdin": whole(program()), "_timeout": LIMIT_S},
    )
    return read_gathered(output.stdout_lines)
