"""Tells a door, on whatever node it is, that a server leaves its rotation or is back."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from weakref import WeakKeyDictionary

from gevent.lock import RLock
from paramiko import SSHException
from pyinfra.api import StringCommand, operation
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from operations.becoming import NotRoot
from operations.outcomes import outcome_of
from operations.remote import give_back, say_failed, whole
from plans.fardoor import AtDoor, come_back, leave

TIME_S = 180
"""Seconds that a door's node has to answer: its program waits for 60 s at most, twice."""

_connecting: WeakKeyDictionary[Host, RLock] = WeakKeyDictionary()


class _Elsewhere(StringCommand):
    """A program that runs on the door's node, for another node of the run."""

    def __init__(self, one: AtDoor, text: str, what: str, service: str, *, leaves: bool) -> None:
        super().__init__(f": {what}; exec sh -s")
        self.one = one
        self.text = text
        self.what = what
        self.service = service
        self.leaves = leaves

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        if self.leaves:
            # Whatever it came to: it may be out.
            outcome_of(host).left.add(self.service)
        ok, why = self._run(state)
        if not ok:
            say_failed(host, f"{self.service}: {self.what}: {why}")
            give_back(state, host, connector_arguments)
        return ok, CommandOutput([])

    def _run(self, state: State) -> tuple[bool, str]:
        there = next((one for one in state.inventory if one.name == self.one.node), None)
        if there is None:
            return False, f"{self.one.node} is not in the inventory"
        try:
            for again in (True, False):
                try:
                    return self._on(state, there)
                except (OSError, EOFError, SSHException):
                    # What was connected long ago may be gone: what is told may be told twice.
                    if not again:
                        raise
                    there.connected = False
        except (ConnectError, NotRoot, OSError, EOFError, SSHException) as error:
            said = str(error.args[0] if error.args else error) or type(error).__name__
            return False, (
                f"that node was not reached ({said}); where its door is no more, take it out of "
                f"the data of {self.one.node} in the inventory"
            )
        raise AssertionError("unreachable")

    def _on(self, state: State, there: Host) -> tuple[bool, str]:
        with _connecting.setdefault(there, RLock()):
            if not there.connected:
                there.connect(show_errors=False, raise_exceptions=True)
                # Else nobody disconnects from a node that the run itself does not have.
                state.activated_hosts.add(there)
        given, _ = pop_global_arguments(state, there, {})
        arguments = {key: value for key, value in given.items() if key in CONNECTOR_ARGUMENT_KEYS}
        ok, output = there.run_shell_command(
            self,
            print_output=True,
            print_input=state.print_input,
            **{**arguments, "_stdin": whole(self.text), "_timeout": TIME_S},
        )
        said = [line for line in (*output.stdout_lines, *output.stderr_lines) if line.strip()]
        return ok, said[-1] if said else "it did not come to its end"


@operation(is_idempotent=False)
def left(one: AtDoor, service: str, seconds: float) -> Generator[StringCommand, None, None]:
    """
    Take a server out of a door's rotation, before it is stopped.

    + one: the server as the door has it, and the door's node
    + service: the service on this node
    + seconds: that it may answer before the door lets it back by itself

    **Example:**

    .. code:: python

        fardoor.left(AtDoor("gpu-1", "10.0.0.2:30000", False), "chat", 600, name="Leave the door")
    """
    what = f"take {one.server} out of the rotation of the door on {one.node}"
    yield _Elsewhere(one, leave(one, seconds), what, service, leaves=True)


@operation(is_idempotent=False)
def back(one: AtDoor, service: str) -> Generator[StringCommand, None, None]:
    """
    Let a server back into a door's rotation, and wait until the door finds it healthy.

    + one: the server as the door has it, and the door's node
    + service: the service on this node

    **Example:**

    .. code:: python

        fardoor.back(AtDoor("gpu-1", "10.0.0.2:30000", False), "chat", name="Return to the door")
    """
    what = f"let {one.server} back into the rotation of the door on {one.node}"
    yield _Elsewhere(one, come_back(one), what, service, leaves=False)
