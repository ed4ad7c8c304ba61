"""What the operator writes arrives at the server as written, and stands in no argument list.

Between the inventory and the real process lie YAML, systemd's two parsers, Docker's
``--env-file`` and SGLang's ``--config``: none of them may read anything into a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plans import paths, quoting

from .harness.lab import MODEL
from .harness.machine import Node
from .harness.registry import Registry
from .site import CPU_ARGUMENTS, Site, service, show

UNIT = "sglang@chat.service"
WILD = (
    """{"a": [1, "b c"]} 'x' "y" %n %% $HOME ${PATH} $$ a\\b \\" `id` # ünïcode 模型 ; | & * ~ !x"""
)
NAME = """tiny $HOME ${HOME} %n %i "double" 'single' back\\slash #hash ünïcode 模型 ["j", 1]"""

ENVIRONMENT = {
    "WILD": WILD,
    "WILD_JSON": json.dumps({"key": [WILD, None, 1.5]}, ensure_ascii=False),
    "WILD_SPACES": "  two before, a\ttab, two after  ",
    "WILD_HASH": "#no comment",
    "WILD_EQUALS": "a=b=c",
    "WILD_QUOTED": '"all of it"',
    "WILD_NOTHING": "",
}

OVERRIDE = json.dumps({"toolkit_note": WILD}, ensure_ascii=False)

ARGUMENTS: dict[str, Any] = {
    "weight-version": WILD,
    "json-model-override-args": OVERRIDE,
    "crash-dump-folder": "/tmp/two  spaces $HOME %n/'x'",
    "extra-metric-labels": {"team": 'a "b" $HOME %n ünïcode'},
    "uvicorn-access-log-exclude-prefixes": ["/a b", "/%n $HOME 'c' \"d\" #e"],
    "log-requests-level": 1,
    "enable-cache-report": True,
}

ITEMS = (
    "plain",
    "two words",
    "",
    " ",
    "tab\there",
    '--gpus="device=GPU-a,GPU-b"',
    "--x='single'",
    "it's",
    "say \"hi\" 'there'",
    "back\\slash",
    "ends in \\",
    "\\n",
    '\\"',
    "$HOME ${HOME} $$",
    "%n %% %i",
    "#hash ;",
    ";",
    "ünïcode 模型",
    '{"a": ["b c", "d\\"e"]}',
    WILD,
)


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images."""
    node = node_factory("exact", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A service whose every free text is wild, applied."""
    wild = service(
        served_name=NAME, environment=ENVIRONMENT, arguments={**CPU_ARGUMENTS, **ARGUMENTS}
    )
    data = {"services": [wild], "registry": {"mirrors": {"docker.io": registry.url}}}
    site = Site(tmp_path_factory.mktemp("site"), [node], data)
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    return site


def server_of(node: Node) -> str:
    """Return the process id, on the node, of the server: the child of --init."""
    init = node.run("docker inspect -f '{{.State.Pid}}' sglang-chat").stdout.strip()
    return node.run(f"cat /proc/{init}/task/{init}/children").stdout.split()[0]


def zero_separated(node: Node, path: str) -> list[str]:
    """Return the words of a file of /proc, each as it is there."""
    hexed = node.run(f"od -An -v -tx1 {path}").stdout
    return bytes.fromhex(hexed).decode().split("\0")[:-1]


def answer_of(node: Node, path: str) -> Any:
    """Return what the server answers on the node."""
    return json.loads(node.run(f"curl -sSf http://127.0.0.1:30000{path}").stdout)


def test_the_environment_arrives_as_written(site: Site, node: Node) -> None:
    words = zero_separated(node, f"/proc/{server_of(node)}/environ")
    seen = dict(word.split("=", 1) for word in words)
    assert {name: seen.get(name) for name in ENVIRONMENT} == ENVIRONMENT


def test_the_arguments_arrive_as_written(site: Site, node: Node) -> None:
    known = answer_of(node, "/server_info")
    seen = {name: known[name.replace("-", "_")] for name in ARGUMENTS}
    assert seen == ARGUMENTS


def test_clients_ask_for_the_very_name_that_was_written(site: Site, node: Node) -> None:
    (model,) = answer_of(node, "/v1/models")["data"]
    assert model["id"] == NAME


def test_nothing_of_it_stands_in_an_argument_list(site: Site, node: Node) -> None:
    config = paths.Deployment("chat", 1).file(paths.SERVER_YAML)
    words = zero_separated(node, f"/proc/{server_of(node)}/cmdline")
    assert words[words.index("serve") :] == [
        "serve",
        "--model-path",
        MODEL,
        "--config",
        config,
    ]
    client = zero_separated(node, f"/proc/{show(node, UNIT, 'MainPID')['MainPID']}/cmdline")
    assert client[:2] == ["/usr/bin/docker", "run"]
    assert client[-6:] == ["sglang", *words[words.index("serve") :]]
    every = node.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").stdout
    assert MODEL in every
    for part in ("weight-version", "ünïcode", "two  spaces", "two before", "served-model-name"):
        assert part not in every


def test_such_a_service_is_converged_and_verified_by_its_name(site: Site) -> None:
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert site.tool("verify").code == 0


@pytest.mark.parametrize("tree", ["bookworm", "trixie"])
def test_systemd_splits_quoted_words_into_just_these(
    tree: str, request: pytest.FixtureRequest, node_factory: Callable[..., Node]
) -> None:
    trixie = tree == "trixie"
    node = (
        request.getfixturevalue("node")
        if trixie
        else node_factory("split", tree_name=tree, gpus=None)
    )
    try:
        node.put(
            "/root/split.env",
            quoting.environment_file({"WORDS": quoting.words(ITEMS), "ONE": WILD}, "a comment"),
        )
        node.put(
            "/root/show.py",
            "import json, os, sys\n"
            "json.dump([sys.argv[1:], os.environ['ONE']], open('/root/seen.json', 'w'))\n",
        )
        node.put(
            "/etc/systemd/system/split.service",
            "[Service]\nType=oneshot\nEnvironmentFile=/root/split.env\n"
            "ExecStart=/usr/bin/python3 /root/show.py $WORDS ${ONE}\n",
        )
        node.run("systemctl daemon-reload && systemctl start split")
        words, one = json.loads(node.read("/root/seen.json"))
        assert words == [*ITEMS, WILD]
        assert one == WILD
    finally:
        if not trixie:
            node.discard()
