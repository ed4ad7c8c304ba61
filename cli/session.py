"""One run of pyinfra over some nodes: connect, prepare each, execute, disconnect."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
import gevent
import pyinfra
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.operations import run_host_op
from pyinfra.api.output import set_echo
from pyinfra.api.state import BaseStateCallback, StateStage
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from cli.reach import refuse_unknown_keys

T = TypeVar("T")

TELL_S = 10
"""Seconds after which people are told which nodes a run still waits for."""

GRACE_S = 5
"""Seconds that an interrupted run waits for what it began here to end."""


class _Watcher(BaseStateCallback):
    """Keeps why a connection failed, which pyinfra otherwise only logs."""

    def __init__(self) -> None:
        self.errors: dict[Host, str] = {}

    def host_connect_error(  # type: ignore[override]  # pyinfra calls it on the instance
        self, state: State, host: Host, error: Any
    ) -> None:
        self.errors[host] = str(error) or type(error).__name__


@dataclass
class Progress:
    """How far a node came: the names of its operations that act."""

    done: list[str] = field(default_factory=list)
    at: str | None = None
    left: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """What was done and what was not, in words."""
        parts = [f"done: {', '.join(self.done) or 'nothing'}"]
        parts += [f"interrupted at: {self.at}"] if self.at else []
        parts += [f"not begun: {', '.join(self.left)}"] if self.left else []
        return "; ".join(parts)


class Interrupted(Exception):
    """The run was interrupted while it changed nodes; ``lines`` say of each how far it came."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines


class Session:
    """A run over the nodes of an inventory; every method treats each node on its own."""

    def __init__(self, state: State, config: Config, watcher: _Watcher) -> None:
        self.state = state
        self._config = config
        self._watcher = watcher

    @property
    def hosts(self) -> list[Host]:
        """The nodes of this run, as the inventory orders them."""
        return [h for h in self.state.inventory if self.state.is_host_in_limit(h)]

    def connect_error(self, host: Host) -> str | None:
        """Return why a node could not be reached, or None where it was."""
        return self._watcher.errors.get(host)

    def prepare(self, task: Callable[[Host], T | None]) -> dict[Host, T | Exception | None]:
        """Run ``task`` for every node that is connected, side by side; return what each gave.

        An exception is that node's own result and stops no other; None stands
        for a node that was marked as failed on the way.
        """

        def one(host: Host) -> T | Exception | None:
            with ctx_config.use(self._config.copy()), ctx_host.use(host):
                try:
                    return task(host)
                except PyinfraError as error:
                    # "No hosts remaining!", raised when the last node is marked as failed.
                    return None if host in self.state.failed_hosts else error
                except Exception as error:
                    self.state.failed_hosts.add(host)
                    return error

        return self._side_by_side(one, tell=True)

    def execute(self, step: Callable[[Host, str], None]) -> None:
        """Run what was registered: every node at its own pace, a failed one stops no other.

        ``step`` is told each operation that will act, before it does.
        """
        self.state.set_stage(StateStage.Execute)
        self.state.is_executing = True
        order = self.state.get_op_order()  # type: ignore[no-untyped-call]

        def name_of(host: Host, op_hash: str) -> str | None:
            if not self.state.ops[host][op_hash].operation_meta.will_change:
                return None
            return ", ".join(self.state.get_op_meta(op_hash).names)

        progress = {
            host: Progress(left=[n for op in order if op in self.state.ops[host]
                                 if (n := name_of(host, op)) is not None])
            for host in self._active()
        }  # fmt: skip

        def one(host: Host) -> None:
            so_far = progress[host]
            with ctx_host.use(host):
                for op_hash in order:
                    if op_hash not in self.state.ops[host]:
                        continue
                    so_far.at = name_of(host, op_hash)
                    if so_far.at is not None:
                        so_far.left.remove(so_far.at)
                        step(host, so_far.at)
                    if not run_host_op(self.state, host, op_hash):
                        self.state.failed_hosts.add(host)
                        return
                    if so_far.at is not None:
                        so_far.done.append(so_far.at)
                    so_far.at = None

        try:
            self._side_by_side(one)
        except KeyboardInterrupt:
            told = [
                f"{h.name}  {p.sentence}" for h, p in progress.items() if p.done or p.at or p.left
            ]
            raise Interrupted(told) from None

    def _side_by_side(self, one: Callable[[Host], T], *, tell: bool = False) -> dict[Host, T]:
        assert self.state.pool is not None
        greenlets = {host: self.state.pool.spawn(one, host) for host in self._active()}
        try:
            while tell and (
                slow := [h for h, greenlet in greenlets.items() if not greenlet.ready()]
            ):
                if len(gevent.wait([greenlets[h] for h in slow], timeout=TELL_S)) == len(slow):
                    break
                names = ", ".join(h.name for h in slow if not greenlets[h].ready())
                click.echo(f"still waiting for what {names} is", err=True)
            return {host: greenlet.get() for host, greenlet in greenlets.items()}
        except KeyboardInterrupt:
            self.state.pool.kill(timeout=GRACE_S)
            raise

    def _active(self) -> list[Host]:
        active = set(self.state.inventory.get_active_hosts()) - self.state.failed_hosts
        return [host for host in self.state.inventory if host in active]


@contextmanager
def session(
    inventory: Inventory,
    hosts: Sequence[Host] | None,
    *,
    sudo: bool,
    verbosity: int,
    deploy_file: str,
) -> Iterator[Session]:
    """Connect to the nodes and give a session over them; disconnect at the end.

    ``deploy_file`` is the file whose calls order the operations: pyinfra sorts
    them by the lines of their call stack from there on.
    """
    _set_up_output(verbosity)
    # pyinfra sorts operations by call stack in this mode, and otherwise merges
    # different operations of different hosts into one.
    pyinfra.is_cli = True
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = len(hosts) if hosts is not None else len(list(inventory))
    config = Config(  # type: ignore[no-untyped-call]
        PARALLEL=max(1, min(count, soft // 3)), CONNECT_TIMEOUT=15
    )
    if sudo:
        config.SUDO = True
    state = State(check_for_changes=True)
    state.current_deploy_filename = deploy_file
    state.print_output = verbosity >= 3
    state.print_input = state.print_fact_input = verbosity >= 2
    state.print_fact_output = verbosity >= 3
    for host in inventory:
        refuse_unknown_keys(host)
    watcher = _Watcher()
    # One node that cannot be reached must not end the run for the others.
    config.FAIL_PERCENT = 100
    with ctx_state.use(state), ctx_inventory.use(inventory), ctx_config.use(config):
        state.init(inventory, config, initial_limit=list(hosts) if hosts is not None else None)
        state.add_callback_handler(watcher)  # type: ignore[no-untyped-call]
        state.set_stage(StateStage.Connect)
        try:
            _connect_all(state, watcher)
            state.set_stage(StateStage.Prepare)
            yield Session(state, config, watcher)
        finally:
            disconnect_all(state)


def _connect_all(state: State, watcher: _Watcher) -> None:
    """Connect to every node side by side; what goes wrong with one is kept, and stops no other.

    pyinfra's own ends the run of all where a connector raises what it did not expect, such as for
    a private key that is not there.
    """
    assert state.pool is not None

    def one(host: Host) -> None:
        try:
            host.connect()
        except Exception as error:
            watcher.errors[host] = str(error) or type(error).__name__

    hosts = [host for host in state.inventory if state.is_host_in_limit(host)]
    gevent.joinall([state.pool.spawn(one, host) for host in hosts])
    for host in hosts:
        if host.connected:
            state.activate_host(host)
    failed = {host for host in hosts if not host.connected}
    try:
        state.fail_hosts(failed, activated_count=len(hosts))  # type: ignore[no-untyped-call]
    except PyinfraError:  # "No hosts remaining!": each has its reason
        if not watcher.errors:
            raise


def _set_up_output(verbosity: int) -> None:
    """Send what pyinfra says to stderr: stdout is for the command's own document."""
    set_echo(lambda message=None, **_: click.echo(message, err=True))
    logger = pyinfra.logger
    # What went wrong is said once, by the command itself, with what to do about it.
    logger.setLevel({0: logging.CRITICAL, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.propagate = False
