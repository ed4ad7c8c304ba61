"""Makes a bundle on a node, and brings what a service lacks from one to a node."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyinfra.api import StringCommand, operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import host

from operations.archive import Writer, check_tree, contents, room_for
from operations.remote import Judge, Program, failing, say_failed
from operations.streams import Download, Upload
from plans import bundle_scripts, paths
from plans.bundle import END, BundleError, Manifest, Member, Taken, header, padding
from plans.bundling import Gathered, Ingredients, sources
from plans.plan import NodePlan, ServicePlan


@operation()
def present(plan: ServicePlan) -> Generator[StringCommand, None, None]:
    """
    Bring image and weights of a service from a bundle to the node, with no network beyond ours.

    + plan: the service's part of the node's plan

    What is on the node already is not sent again, also where an earlier run was cut. All that came
    is checked before any of it is used.

    **Example:**

    .. code:: python

        bundle.present(plan, name="Bring what chat needs from the bundle")
    """
    taken = plan.bundle
    if taken is None:
        host.noop(f"{plan.name} takes nothing from a bundle")
        return
    yield from brought(plan.name, taken)


def brought(name: str, taken: Taken) -> Generator[StringCommand, None, None]:
    """Give the commands that bring files to a node: made ready, sent, checked and placed."""
    have: set[str] = set()

    def ready(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        mark = bundle_scripts.HAVE_MARK
        have.update(x.removeprefix(mark) for x in output.stdout_lines if x.startswith(mark))
        return failing(f"the node is not ready for the bundle's files of {name}")(
            state, host, ok, output
        )

    yield Program(bundle_scripts.begin(taken), "make ready for the bundle", show=False, judge=ready)
    yield Upload(
        bundle_scripts.receive(taken),
        f"send what {name} needs of the bundle",
        lambda: archive_of(taken, [one for one in taken.members if one.sha256 not in have]),
        taken.size,
        bundle_scripts.clean(taken.directory),
    )
    yield Program(
        bundle_scripts.place(taken),
        f"install what {name} needs of the bundle",
        judge=failing(f"what {name} needs of the bundle could not be installed"),
    )


def archive_of(taken: Taken, members: list[Member]) -> Iterator[bytes]:
    """Give a tar archive of some of a bundle's files, a piece at a time, each checked as it is read.

    Its headers are made here: nothing of the bundle's own form reaches the node.
    """
    python = taken.environment.python if taken.environment else None
    if python is not None and python.content in members:
        check_tree(contents(taken.bundle, python.content), python.name, python.content.size)
    for member in members:
        yield header(member.name, member.size)
        yield from contents(taken.bundle, member)
        yield b"\0" * padding(member.size)
    yield b"\0" * END


@operation()
def cleared(plan: NodePlan) -> Generator[Program, None, None]:
    """
    Take away what came of a bundle and is in its places now.

    + plan: the node's plan

    **Example:**

    .. code:: python

        bundle.cleared(plan, name="Take the files of the bundle away")
    """
    takes = [one.bundle for one in plan.services] + ([plan.door.bundle] if plan.door else [])
    directories = sorted({one.directory for one in takes if one and one.environment})
    if not directories:
        host.noop("nothing of a bundle is left")
    for directory in directories:
        yield Program(
            bundle_scripts.clean(directory), "take the files of the bundle away", show=False
        )


@dataclass
class Making:
    """A bundle on its way from a node to a file of this machine."""

    out: Path
    made_of: Ingredients
    manifest_of: Callable[[Gathered], Manifest]
    gathered: Gathered = field(default_factory=Gathered)
    manifest: Manifest | None = None
    sha256: str | None = None  # of the manifest, once the file is in its place


@operation(is_idempotent=False)
def made(making: Making) -> Generator[StringCommand, None, None]:
    """
    Make a bundle of what is on a node.

    + making: what goes into it, and where it is written

    The node gathers the files in a directory of its own, which is gone at the end, whichever that
    is; the bundle is written here, a piece at a time, and has its name once it is whole.

    **Example:**

    .. code:: python

        bundle.made(making, name="Make the bundle")
    """

    def gathered(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        if not failing("the bundle's files could not be gathered")(state, host, ok, output):
            return False
        making.gathered.read(output.stdout_lines)
        try:
            making.manifest = making.manifest_of(making.gathered)
        except KeyError as error:
            say_failed(host, f"the node did not say what {error} is")
            return False
        full = room_for(making.out, making.manifest)
        if full is not None:
            say_failed(host, f"no bundle was made: {full}")
        return full is None

    def wheels_of(key: str) -> Judge:
        def wheels(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
            making.gathered.read(output.stdout_lines, key)
            return failing("the wheels could not be gathered")(state, host, ok, output)

        return wheels

    for environment in making.made_of.environments:
        yield Program(
            bundle_scripts.wheels(environment),
            f"gather the wheels of {environment.planned.key}",
            judge=wheels_of(environment.planned.key),
        )
    images = [image for image, _ in making.made_of.images]
    yield Program(
        bundle_scripts.gather(images, making.made_of.small_files),
        "gather the files of the bundle",
        judge=gathered,
    )
    yield _Fetch(making)
    yield Program(
        bundle_scripts.clean(paths.BUNDLE_WORK), "take the working directory away", show=False
    )


class _Fetch(StringCommand):
    """Takes the gathered files: what they are is known once the command before has ended."""

    def __init__(self, making: Making) -> None:
        super().__init__(": fetch the bundle; exec sh -s")
        self.making = making

    def execute(self, state: State, host: Host, connector_arguments: object) -> object:
        making = self.making
        assert making.manifest is not None
        try:
            writer = Writer(making.out, making.manifest)
        except OSError as error:
            say_failed(host, f"{making.out} could not be written: {error.strerror}")
            return False, CommandOutput([])
        fetch = Download(
            bundle_scripts.send(sources(making.made_of, making.gathered, making.manifest)),
            "fetch the bundle",
            writer.write,
            sum(member.size for member in making.manifest.members),
            bundle_scripts.clean(paths.BUNDLE_WORK),
        )
        try:
            ok, output = fetch.execute(state, host, connector_arguments)
            if ok:
                making.sha256 = writer.finish()
        except (BundleError, OSError) as error:
            say_failed(host, f"{making.out} could not be written: {error}")
            ok, output = False, CommandOutput([])
        finally:
            if making.sha256 is None:
                writer.discard()
        return ok, output
