"""What a node keeps and what is taken of it: both programs run by real shells over a directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from facts.stock import StockRequest, stock_program
from plans import paths
from plans.collecting import Collected, collect_program, collected
from plans.collection import Collection, Policy, collect
from plans.onnode import refusal_in
from plans.stock import Stock, read_stock_lines

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
SHELLS = {name: argv for name, argv in SHELLS.items() if shutil.which(argv[0])}
DAY = 86400
OLD = Policy(keep=2, older_than=30 * DAY)

IMAGES = """#!/bin/sh
case "$1 $2" in
"ps -aq") ;;
"info --format") echo {root} ;;
"image inspect")
    for word; do name=$word; done
    [ -e "{root}/images/$name" ] || exit 1
    echo "sha256:$name 1000 $(cat "{root}/images/$name")"
    ;;
"image rm") echo "Untagged: $3"; rm "{root}/images/$3" ;;
*) exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put every path of a node under a directory of the test."""
    for name in (
        "STATE", "DEPLOYMENTS", "RECORDS", "KEYS", "OPT", "ENVIRONMENTS", "PYTHONS", "TOOLS",
        "CACHES", "DOORS", "PACKAGE_CACHE",
    ):  # fmt: skip
        monkeypatch.setattr(paths, name, f"{tmp_path}{getattr(paths, name)}")


@dataclass
class Node:
    """A node in a directory: chat had deployments 1 to 5, of which 5 is current."""

    root: Path
    shell: list[str]

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        text = f"set -- {' '.join(words)}\n{program}" if words else program
        return subprocess.run(
            [*self.shell, "-s"],
            input=text,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"},
            timeout=60,
        )

    def lines(self) -> list[str]:
        request = StockRequest(
            deployments=paths.DEPLOYMENTS,
            launch=paths.LAUNCH_ENV,
            doors=paths.DOORS,
            environments=paths.ENVIRONMENTS,
            pythons=paths.PYTHONS,
            tools=paths.TOOLS,
            caches=paths.CACHES,
            packages=paths.PACKAGE_CACHE,
            account="daemon",
        )
        done = self.run(stock_program(), *request.words())
        assert done.stderr == ""
        return done.stdout.splitlines()

    @property
    def stock(self) -> Stock:
        return read_stock_lines(self.lines())

    def plan(self, policy: Policy = OLD) -> Collection:
        return collect(self.stock, policy, f"{paths.TOOLS}/uv-2")

    def collect(self, found: Collection) -> tuple[int, Collected, str]:
        done = self.run(collect_program(found))
        assert done.stderr == ""
        return done.returncode, collected(done.stdout.splitlines()), done.stdout

    def names(self, path: str) -> list[str]:
        return sorted(one.name for one in Path(path).iterdir())

    def age(self, path: str | Path, days: float) -> None:
        then = time.time() - days * DAY
        for one in [Path(path), *Path(path).rglob("*")]:
            os.utime(one, (then, then), follow_symlinks=False)

    def deploy(self, number: int, days: float, *, served: bool = True) -> None:
        directory = Path(paths.Deployment("chat", number).directory)
        directory.mkdir(parents=True)
        environment = f"{paths.ENVIRONMENTS}/e{number}"
        kernels = f"{paths.CACHES}/{number:016x}"
        (directory / paths.LAUNCH_ENV).write_text(
            f'SGLANG_IMAGE="image{number}"\nSGLANG_ENVIRONMENT="{environment}"\n'
            f'SGLANG_KERNELS="{kernels}"\n'
        )
        (directory / paths.PLAN_JSON).write_text("{}")
        if served:
            (directory / paths.RECORD_JSON).write_text('{"result": "ready"}')
        self.thing(f"{environment}/environment.json", days)
        self.thing(f"{kernels}/home/kernel.so", days)
        Path(kernels).chmod(0o700)
        python = f"{paths.PYTHONS}/cpython-3.{number}/bin/python3"
        self.thing(python, days)
        Path(environment, "bin").mkdir()
        Path(environment, "bin/python3").symlink_to(python)
        self.thing(f"{self.root}/images/image{number}", days)
        Path(f"{self.root}/images/image{number}").write_text("null")
        self.age(directory, days)

    def thing(self, path: str, days: float) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("x" * 5000)
        self.age(path, days)

    def link(self, name: str, number: int) -> None:
        link = Path(paths.deployments_of("chat"), name)
        link.unlink(missing_ok=True)
        link.symlink_to(str(number))


@pytest.fixture(params=["dash"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    if os.geteuid() != 0:
        pytest.skip("not root, whose all things of the toolkit are")
    # ctime, which no program sets, is as old as the test: Pythons and tools are younger than a day.
    made = Node(tmp_path, SHELLS[request.param])
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("docker", IMAGES.replace("{root}", str(tmp_path))),
        ("systemctl", "#!/bin/sh\necho 0\n"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for number, days in ((1, 100), (2, 90), (3, 80), (4, 70), (5, 60)):
        made.deploy(number, days)
    made.link("current", 5)
    made.link("previous", 4)
    return made


@pytest.mark.parametrize("node", SHELLS, indirect=True)
def test_what_lies_on_a_node_is_told_whole(node: Node) -> None:
    stock = node.stock
    assert [one.number for one in stock.deployments] == [1, 2, 3, 4, 5]
    assert (stock.services["chat"].current, stock.services["chat"].previous) == (5, 4)
    assert stock.services["chat"].runs is None
    first = stock.deployments[0]
    assert (first.served, first.readable, first.image) == (True, True, "image1")
    assert 99 * DAY < stock.clock - (first.last or 0) < 101 * DAY
    kinds = {one.kind for one in stock.things}
    assert kinds == {"environment", "cache", "python"}
    assert all(one.owner == 0 and one.size >= 5000 for one in stock.things)
    assert (stock.unread, stock.odd) == ((), ())


@pytest.mark.parametrize("node", SHELLS, indirect=True)
def test_old_deployments_go_with_all_that_they_alone_were_started_from(node: Node) -> None:
    found = node.plan()
    assert found.kept == {"chat": (4, 5)}
    code, done, _ = node.collect(found)
    assert code == 0
    assert node.names(paths.deployments_of("chat")) == ["4", "5", "current", "previous"]
    assert node.names(paths.ENVIRONMENTS) == ["e4", "e5"]
    assert node.names(paths.CACHES) == [f"{n:016x}" for n in (4, 5)]
    assert node.names(f"{node.root}/images") == ["image4", "image5"]
    # What became of them is still told.
    assert node.names(f"{paths.RECORDS}/chat") == ["1.json", "2.json", "3.json"]
    assert done.freed is not None
    assert done.left == ()
    assert node.plan().items == ()


def test_what_is_young_stays(node: Node) -> None:
    found = node.plan(Policy(keep=2, older_than=85 * DAY))
    # Each was of use until the next was made: the first until 90 days ago.
    assert [one.what.rsplit("/", 1)[1] for one in found.items if one.kind == "deployment"] == ["1"]
    assert found.kept == {"chat": (2, 3, 4, 5)}


def test_what_the_door_is_started_from_stays(node: Node) -> None:
    door = Path(paths.DOORS, "0123456789abcdef")
    door.mkdir(parents=True)
    environment = f"{paths.ENVIRONMENTS}/e2"
    without = node.plan()
    (door / "door.env").write_text(f'SGLANG_ENVIRONMENT="{environment}"\n')
    assert environment in {one.what for one in without.items}
    assert environment not in {one.what for one in node.plan().items}
    # Also where the door came after what was decided.
    _, done, _ = node.collect(without)
    assert environment in {one.what for one in done.left}
    assert "e2" in node.names(paths.ENVIRONMENTS)


def test_a_python_goes_with_its_last_environment(node: Node) -> None:
    Path(f"{paths.PYTHONS}/cpython-3").symlink_to(f"{paths.PYTHONS}/cpython-3.1")
    node.thing(f"{paths.TOOLS}/uv-1", 0)
    node.thing(f"{paths.TOOLS}/uv-2", 0)
    code, _, _ = node.collect(node.plan(Policy(keep=2, older_than=0)))
    assert code == 0
    assert node.names(paths.PYTHONS) == ["cpython-3.4", "cpython-3.5"]
    assert node.names(paths.TOOLS) == ["uv-2"]


def test_what_others_made_is_named_and_left(node: Node) -> None:
    theirs = f"{paths.CACHES}/{1:016x}"
    os.chown(theirs, 4711, -1)
    Path(f"{paths.ENVIRONMENTS}/e2").chmod(0o777)
    node.thing(f"{paths.CACHES}/torch/kernel.so", 400)
    node.thing(f"{paths.CACHES}/it's mine/kernel.so", 400)
    Path(f"{node.root}/images/image3").write_text('["mine:1"]')
    found = node.plan()
    left = {one.what: one.why for one in found.left}
    assert left == {
        theirs: "it belongs to user 4711",
        f"{paths.ENVIRONMENTS}/e2": "others may write to it (mode 777)",
        f"{paths.CACHES}/torch": "no build of the toolkit has such a name",
        paths.CACHES: "it holds things with names of others",
        "image image3": "it has a name that the toolkit did not give: mine:1",
    }
    assert node.collect(found)[0] == 0
    for path in (theirs, f"{paths.ENVIRONMENTS}/e2", f"{paths.CACHES}/torch"):
        assert Path(path).is_dir()
    assert "image3" in node.names(f"{node.root}/images")


def test_halves_that_cut_runs_left_go_whatever_their_age(node: Node) -> None:
    node.thing(f"{paths.ENVIRONMENTS}/e9.new/x", 0)
    node.thing(f"{paths.ENVIRONMENTS}/e5.old/x", 0)
    node.thing(f"{paths.deployments_of('chat')}/6.new/server.yaml", 0)
    # On its way to its place: a cut between two renames left it, and a restart needs it.
    Path(f"{paths.ENVIRONMENTS}/e4").rename(f"{paths.ENVIRONMENTS}/e4.old")
    assert node.collect(node.plan())[0] == 0
    assert node.names(paths.ENVIRONMENTS) == ["e4.old", "e5"]
    assert node.names(paths.deployments_of("chat")) == ["4", "5", "current", "previous"]


def test_an_environment_that_a_process_uses_is_left(node: Node) -> None:
    busy = f"{paths.ENVIRONMENTS}/e1"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", f"{busy}/bin/sglang"]
    )
    try:
        code, done, _ = node.collect(node.plan())
    finally:
        process.kill()
        process.wait()
    assert code == 0
    assert [(one.what, one.why) for one in done.left] == [(busy, f"process {process.pid} uses it")]
    assert Path(busy).is_dir()


def test_a_lock_of_a_compiler_that_is_no_more_goes_and_that_of_a_live_one_stays(
    node: Node,
) -> None:
    dead, live = (f"{paths.CACHES}/{n:016x}/home/ext/lock" for n in (5, 4))
    for path in (dead, live):
        node.thing(path, 1)
    with Path(live).open():
        found = node.plan()
        assert [one.what for one in found.items if one.kind == "compiler lock"] == [dead]
        assert node.collect(found)[0] == 0
    assert not Path(dead).exists()
    assert Path(live).exists()


def switched(node: Node) -> None:
    node.link("current", 3)


def deployed(node: Node) -> None:
    node.deploy(6, 0)


def another_service(node: Node) -> None:
    Path(paths.deployments_of("other"), "1").mkdir(parents=True)


@pytest.mark.parametrize("happens", [switched, deployed, another_service])
def test_nothing_goes_where_the_node_is_another_than_it_was_decided_for(
    node: Node, happens: object
) -> None:
    found = node.plan()
    assert callable(happens)
    happens(node)
    there = sorted(str(path) for path in node.root.rglob("*"))
    code, _, said = node.collect(found)
    assert code == 75
    refusal = refusal_in(said.splitlines()[0])
    assert refusal is not None
    assert refusal.code == "STALE_PLAN"
    assert sorted(str(path) for path in node.root.rglob("*")) == there


def test_a_collection_that_was_cut_is_gone_on_with(node: Node) -> None:
    found = node.plan()
    # As it is where power was cut between the rename and the end of taking it away.
    Path(f"{paths.ENVIRONMENTS}/e1").rename(f"{paths.ENVIRONMENTS}/e1.gone")
    Path(paths.Deployment("chat", 1).directory).rename(f"{paths.deployments_of('chat')}/1.gone")
    assert node.collect(found)[0] == 0
    assert node.collect(node.plan())[0] == 0
    assert node.names(paths.ENVIRONMENTS) == ["e4", "e5"]
    assert node.names(paths.deployments_of("chat")) == ["4", "5", "current", "previous"]


def test_the_launch_file_of_a_kept_deployment_must_be_readable(node: Node) -> None:
    Path(paths.Deployment("chat", 4).file(paths.LAUNCH_ENV)).unlink()
    found = node.plan()
    assert found.items == ()
    (refusal,) = found.refusals
    assert refusal.code == "COLLECT_UNREADABLE"
    assert "deployment 4 of chat" in refusal.seen


def test_an_empty_node_keeps_nothing(tmp_path: Path) -> None:
    for argv in SHELLS.values():
        node = Node(tmp_path, argv)
        assert node.plan().items == ()


def chunks(lines: list[str]) -> Iterator[list[str]]:
    for count in range(len(lines)):
        yield lines[:count]


def test_what_did_not_arrive_whole_is_no_stock(node: Node) -> None:
    lines = node.lines()
    for part in chunks(lines):
        with pytest.raises(ValueError, match=re.compile("did not say")):
            read_stock_lines(part)


@pytest.mark.parametrize("node", list(SHELLS), indirect=True)
def test_one_whose_upgrade_failed_is_not_among_those_that_are_gone_back_to(node: Node) -> None:
    record = Path(paths.Deployment("chat", 4).file(paths.RECORD_JSON))
    for indent in (None, 1):
        text = json.dumps({"upgrade": "failed", "result": "its soak"}, indent=indent)
        record.write_text(text)
        assert [one.number for one in node.stock.deployments if not one.served] == [4]
    # 4 stays as the previous one, and of those that stood 5 and 3 do.
    assert {3, 4, 5} == {*node.plan().kept["chat"]}
    for harmless in (
        {"upgrade": "proved"},
        {"upgrade": "begun"},
        {"result": '"upgrade": "failed"'},
        {"result": "an upgrade failed", "upgrade": None},
    ):
        record.write_text(json.dumps(harmless))
        assert all(one.served for one in node.stock.deployments)


@pytest.mark.parametrize("node", list(SHELLS), indirect=True)
def test_words_in_a_launch_file_stop_nothing_and_one_that_cannot_be_read_does(node: Node) -> None:
    launch = Path(paths.Deployment("chat", 5).file(paths.LAUNCH_ENV))
    launch.write_text(launch.read_text() + 'SGLANG_MODEL="acme/unread-mail-8b"')
    door = Path(paths.DOORS, "0123456789abcdef/door.env")
    door.parent.mkdir(parents=True)
    door.write_text('SGLANG_ENVIRONMENT="/opt/unread"')
    found = node.plan()
    assert found.items
    door.unlink()
    door.mkdir()  # what cat cannot read, also as root
    done = node.run(collect_program(found))
    assert done.returncode == 75
    assert "STALE_PLAN what a deployment that stays is started from cannot be read" in done.stdout
    door.rmdir()
    door.write_text('SGLANG_ENVIRONMENT="/opt/unread"')
    kept = launch.read_text()
    launch.unlink()
    launch.mkdir()
    assert node.run(collect_program(found)).returncode == 75
    launch.rmdir()
    launch.write_text(kept)
    code, _, out = node.collect(found)
    assert code == 0
    assert "@gone deployment" in out
