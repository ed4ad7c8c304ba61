"""One run of pyinfra over some nodes: connect, prepare each, execute, disconnect."""

from __future__ import annotations

import logging
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import click
import gevent
import pyinfra
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import disconnect_all
from pyinfra.api.exceptions import ConnectorDataTypeError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.operations import run_host_op
from pyinfra.api.output import set_echo
from pyinfra.api.state import StateStage
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from cli import sshclient
from cli.bounds import UNLIMITED, Bounds, TookTooLong
from cli.connecting import Watcher, connect_all, let_become
from cli.events import Events
from cli.hostkeys import watch
from cli.inventory import TargetError
from cli.reach import ask_for_no_passphrase, take_no_unknown_keys
from cli.summary import few
from operations.becoming import ask_nobody
from operations.outcomes import outcome_of
from operations.remote import say_failed
from plans.secrets import Secret

T = TypeVar("T")

TELL_S = 10
"""Seconds after which people are told which nodes a run still waits for."""

GRACE_S = 5
"""Seconds that an interrupted run waits for what it began here to end."""


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

    def __init__(
        self,
        state: State,
        config: Config,
        watcher: Watcher,
        bounds: Bounds = UNLIMITED,
        events: Events | None = None,
        spent: Mapping[Host, float] | None = None,
    ) -> None:
        self.state = state
        self._bounds = bounds
        self._events = events or Events()
        self._read: set[Host] = set()
        self._spent = dict(spent or {})  # seconds of each node's own
        self._stopped: set[Host] = set()  # because of others, not for a failure of their own
        self._config = config
        self._watcher = watcher

    @property
    def hosts(self) -> list[Host]:
        """The nodes of this run, as the inventory orders them."""
        return [h for h in self.state.inventory if self.state.is_host_in_limit(h)]

    def connect_error(self, host: Host) -> BaseException | None:
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
                    with self._time_of(host):
                        return task(host)
                except gevent.Timeout:
                    self.state.failed_hosts.add(host)
                    return TookTooLong(self._bounds.node_s)
                except PyinfraError as error:
                    # "No hosts remaining!", raised when the last node is marked as failed.
                    return None if host in self.state.failed_hosts else error
                except Exception as error:
                    self.state.failed_hosts.add(host)
                    return error
                finally:
                    self._tell_read(host)

        return self._side_by_side(one, tell=not self._events.listeners)

    def _tell_read(self, host: Host) -> None:
        """Tell that a node was read: the first task of a run over it is to."""
        if host not in self._read:
            self._read.add(host)
            ok, took = host not in self.state.failed_hosts, round(self._spent.get(host, 0.0), 3)
            self._events.tell("read", node=host.name, ok=ok, seconds=took)

    def execute(self, step: Callable[[Host, str], None]) -> None:
        """Run what was registered: every node at its own pace, a failed one stops no other.

        ``step`` is told each operation that will act, before it does.
        """
        self.state.set_stage(StateStage.Execute)
        self.state.is_executing = True

        def order_of(host: Host) -> list[str]:
            # Each at its own pace: pyinfra's one order for all ends with a cycle where two nodes
            # have the steps of two services the other way round.
            return [op for op in host.op_hash_order if op in self.state.ops[host]]

        def name_of(host: Host, op_hash: str) -> str | None:
            op = self.state.ops[host][op_hash]
            if not op.operation_meta.will_change:
                return None
            # The names that pyinfra keeps with an operation are those of all nodes together.
            own = op.global_arguments.get("name")
            return str(own) if own else ", ".join(self.state.get_op_meta(op_hash).names)

        progress = {
            host: Progress(left=[n for op in order_of(host)
                                 if (n := name_of(host, op)) is not None])
            for host in self._active()
        }  # fmt: skip

        def one(host: Host) -> None:
            so_far = progress[host]
            with ctx_host.use(host):
                for op_hash in order_of(host):
                    so_far.at = name_of(host, op_hash)
                    if so_far.at is not None and self._no_more(host, so_far):
                        return
                    if so_far.at is not None:
                        so_far.left.remove(so_far.at)
                        step(host, so_far.at)
                    if not self._run(host, op_hash, so_far.at):
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

    def _run(self, host: Host, op_hash: str, name: str | None) -> bool:
        """Run an operation on a node; ``name`` is what people call it, None where it does nothing."""
        if name is None:
            return self._within_time(host, op_hash, name)
        began = time.monotonic()
        self._events.tell("step-started", node=host.name, step=name)
        ok = self._within_time(host, op_hash, name)
        took = round(time.monotonic() - began, 3)
        self._events.tell("step-ended", node=host.name, step=name, ok=ok, seconds=took)
        return ok

    def _within_time(self, host: Host, op_hash: str, name: str | None) -> bool:
        try:
            with self._time_of(host):
                return bool(run_host_op(self.state, host, op_hash))
        except gevent.Timeout:
            what = f"at: {name}; what it began there may go on" if name else "between two steps"
            say_failed(host, f"{TookTooLong(self._bounds.node_s)} {what}")
            # Nobody knows how far it came, and what runs may be good: nothing is taken back for it.
            outcome_of(host).lost = True
            return False

    def _no_more(self, host: Host, so_far: Progress) -> bool:
        """Say whether too many nodes have failed for a next step to begin."""
        failed = len(self.state.failed_hosts - self._stopped)
        if not self._bounds.stops(failed, len(self.hosts)):
            return False
        so_far.at = None
        self.state.failed_hosts.add(host)
        self._stopped.add(host)
        outcome_of(host).begun = bool(so_far.done)
        say_failed(
            host,
            f"stopped, {failed} of {len(self.hosts)} nodes failed (--max-fail "
            f"{self._bounds.most_failed}): {so_far.sentence}",
        )
        return True

    @contextmanager
    def _time_of(self, host: Host) -> Iterator[None]:
        """Give a node what is left of its time; none of it goes while others are waited for."""
        spent, began = self._spent.get(host, 0.0), time.monotonic()
        try:
            with gevent.Timeout(max(0.01, self._bounds.node_s - spent)):
                yield
        finally:
            self._spent[host] = spent + time.monotonic() - began

    def _side_by_side(self, one: Callable[[Host], T], *, tell: bool = False) -> dict[Host, T]:
        assert self.state.pool is not None
        greenlets = {host: self.state.pool.spawn(one, host) for host in self._active()}
        try:
            while tell and (
                slow := [h for h, greenlet in greenlets.items() if not greenlet.ready()]
            ):
                if len(gevent.wait([greenlets[h] for h in slow], timeout=TELL_S)) == len(slow):
                    break
                names = [h.name for h in slow if not greenlets[h].ready()]
                if names:
                    click.echo(
                        f"still waiting for what {few(names, most=10, shown=10)} is", err=True
                    )
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
    bounds: Bounds = UNLIMITED,
    events: Events | None = None,
    passwords: Mapping[str, Secret] | None = None,
    accept_new: bool = False,
) -> Iterator[Session]:
    """Connect to the nodes and give a session over them; disconnect at the end.

    ``passwords``: of sudo, by node. ``accept_new``: take host keys where none is known. ``deploy_file`` is the file whose calls order the operations: pyinfra sorts
    them by the lines of their call stack from there on.
    """
    _set_up_output(verbosity)
    ask_nobody()
    ask_for_no_passphrase()
    sshclient.use()
    watch(lambda line: click.echo(line, err=True), accept_new=accept_new)
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
        take_no_unknown_keys(host)
    watcher = Watcher()
    # One node that cannot be reached must not end the run for the others.
    config.FAIL_PERCENT = 100
    with ctx_state.use(state), ctx_inventory.use(inventory), ctx_config.use(config):
        try:
            state.init(inventory, config, initial_limit=list(hosts) if hosts is not None else None)
        except ConnectorDataTypeError as error:
            raise TargetError(_of_which_host(inventory, str(error))) from None
        state.add_callback_handler(watcher)  # type: ignore[no-untyped-call]
        state.set_stage(StateStage.Connect)
        let_become(inventory, passwords or {})
        try:
            events = events or Events()
            spent = connect_all(state, watcher, bounds, events)
            state.set_stage(StateStage.Prepare)
            yield Session(state, config, watcher, bounds, events, spent)
        finally:
            disconnect_all(state)
            for host in inventory:
                # pyinfra forgets to: a next session connects anew, to do what is its own.
                host.connected, host.op_hash_order = False, []


def _of_which_host(inventory: Inventory, error: str) -> str:
    """Add to what pyinfra says of a key of the wrong type the hosts that have that key."""
    key = error.partition("`")[2].partition("`")[0]
    hidden = "password" in key
    names = [
        host.name if hidden else f"{host.name} ({host.data.get(key)!r})"
        for host in inventory
        if host.data.get(key)
    ]
    return f"{error.replace('::', ':')}: {', '.join(names[:5])}"


_FOR_US = re.compile(r"\[\S+\] +@[a-z]+( |$)")
"""A line by which a program on a node tells us something: what people read is made of it."""


def _for_people(message: object) -> bool:
    return not _FOR_US.match(str(message))


def _everything(message: object) -> bool:
    return True


def _set_up_output(verbosity: int) -> None:
    """Send what pyinfra says to stderr: stdout is for the command's own document."""
    shows = _everything if verbosity >= 3 else _for_people
    set_echo(lambda message=None, **_: click.echo(message, err=True) if shows(message) else None)
    logger = pyinfra.logger
    # What went wrong is said once, by the command itself, with what to do about it.
    logger.setLevel({0: logging.CRITICAL, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.propagate = False
    # Else paramiko's own tracebacks come out by Python's last resort.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
