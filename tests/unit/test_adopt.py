"""What somebody started by hand becomes an inventory's entry, and what does not is said."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.adopt.flags import read_flags
from plans.adopt.from_file import read_text
from plans.adopt.gathered import NotGathered, program, read_gathered, servers
from plans.adopt.node import Adopted, adopt, inventory_text, python_text
from plans.adopt.records import NotReadable
from plans.checks import argument_checks
from plans.server_yaml import command_line
from plans.sources import secret_argument
from plans.wishes import read_wishes
from releases.schema import Flag
from releases.table import RELEASES, newest

RECORDED = Path(__file__).parents[1] / "recorded" / "adopt"
CASES = sorted(path.stem for path in RECORDED.glob("*.yaml"))


def case(name: str) -> Any:
    return yaml.safe_load((RECORDED / f"{name}.yaml").read_text(encoding="utf-8"))


def adopted(name: str) -> Adopted:
    one = case(name)
    return adopt("gpu-1", read_text(one["text"], one["file"]))


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_start_becomes_the_entry_beside_it(name: str) -> None:
    wanted, found = case(name), adopted(name)
    assert found.data == wanted["entry"]
    assert [text for one in found.entries for text in one.differs] == wanted.get("differs", [])
    assert [text for one in found.entries for text in one.secrets] == wanted.get("secrets", [])
    lost = [str(note) for one in found.entries for note in one.lost] + list(map(str, found.lost))
    assert lost == wanted.get("not_carried", [])
    assert [list(one.found.stop) for one in found.entries] == wanted["stop"]
    assert list(found.problems) == wanted.get("problems", [])


@pytest.mark.parametrize("name", CASES)
def test_the_entry_is_accepted_and_its_text_says_the_same(name: str) -> None:
    found = adopted(name)
    assert found.wishes is not None
    names: dict[str, Any] = {}
    text = inventory_text([found], {"gpu-1": {"ssh_user": "root"}})
    exec(compile(text, "site.py", "exec"), names)
    assert names["gpu_nodes"] == [("gpu-1", {"ssh_user": "root", "sglang": found.data})]


@pytest.mark.parametrize("name", CASES)
def test_no_secret_of_a_start_is_in_anything_that_is_said(name: str) -> None:
    found = adopted(name)
    said = inventory_text([found], {}) + str(found.as_dict())
    for secret in ("notatoken", "stoodin", "stood/in"):
        assert secret not in said


def test_arguments_of_a_known_release_are_refused_by_nothing() -> None:
    for name in CASES:
        wishes = adopted(name).wishes
        assert wishes is not None
        for service in wishes.services:
            _, refusals, _ = argument_checks(service, service.release or newest().version)
            assert not refusals, name


# --- any argument list


def flags_of(version: str) -> list[Flag]:
    reserved = {one.flag for one in RELEASES[version].reserved_flags}
    return [
        flag
        for flag in RELEASES[version].flags.values()
        if flag.canonical not in reserved
        and flag.of is None
        and flag.deprecated is None
        and flag.takes in ("switch", "toggle", "value", "list")
        and secret_argument(flag.name) is None
        # Keys of the entry say these.
        and flag.name not in ("is-embedding", "nnodes", "node-rank")
    ]


plain = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12
).filter(lambda text: not text.startswith("-"))


def values(flag: Flag) -> st.SearchStrategy[Any]:
    if flag.takes in ("switch", "toggle"):
        return st.just(True)
    one: st.SearchStrategy[Any] = plain.filter(lambda text: not text.isdigit())
    if flag.choices:
        numbers = flag.type == "int"
        one = st.sampled_from([int(text) if numbers else text for text in flag.choices])
    elif flag.type in ("int", "human_readable_int"):
        one = st.integers(-(10**9), 10**9)
    elif flag.type == "float":
        one = st.floats(-1e6, 1e6, allow_nan=False).map(float)
    return st.lists(one, min_size=1, max_size=4) if flag.takes == "list" else one


@st.composite
def argument_lists(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    version = draw(st.sampled_from(list(RELEASES)))
    chosen = draw(
        st.lists(st.sampled_from(flags_of(version)), unique_by=lambda f: f.name, max_size=8)
    )
    given = {flag.name: draw(values(flag)) for flag in chosen}
    if "mem-fraction-static" in given:
        given["mem-fraction-static"] = 0.5
    return version, given


@given(argument_lists())
@settings(max_examples=60, deadline=None)
def test_any_argument_list_comes_back_from_the_entry_as_it_was(
    drawn: tuple[str, dict[str, Any]],
) -> None:
    version, arguments = drawn
    words = command_line(arguments)
    text = shlex.join(
        ["docker", "run", "--gpus", "all", f"lmsysorg/sglang:v{version}",
         "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B", *words]
    )  # fmt: skip
    found = adopt("gpu-1", read_text(text, "run.sh"))
    assert found.problems == ()
    wishes = read_wishes(ast.literal_eval(python_text(found.data)), "gpu-1")
    (service,) = wishes.services
    lost = {note.what.split(" ")[0].removeprefix("--") for note in found.entries[0].lost}
    again = read_flags(command_line(service.arguments), RELEASES[version])
    assert again.lost == ()
    # Paths of the image have no place, and are said.
    assert again.arguments == {k: v for k, v in arguments.items() if k not in lost}
    assert all(str(arguments[name]).count("/") for name in lost if name in arguments)


@given(st.text(max_size=300), st.sampled_from(["x.sh", "x.yaml", "x.service", "x.json", "x"]))
@settings(max_examples=100, deadline=None)
def test_any_text_is_read_or_refused_in_a_sentence(text: str, name: str) -> None:
    # Whatever else is raised would end the command with a traceback.
    with suppress(NotReadable):
        assert read_text(text, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "docker run --gpus all vllm/vllm-openai:v0.9 --model Qwen/Qwen3-8B"),
        ("run.sh", "docker run --name x"),
        ("run.sh", "docker run 'lmsysorg/sglang:v0.5.22"),
        ("compose.yaml", "services: []"),
        ("compose.yaml", "a: [1"),
        ("x.json", "[1]"),
        ("x.service", "[Service]\nExecStart=/usr/sbin/nginx\n"),
    ],
)
def test_what_serves_nothing_is_refused(name: str, text: str) -> None:
    with pytest.raises(NotReadable):
        read_text(text, name)


# --- what a node tells


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"], ["sh"]])
def test_the_program_that_reads_a_node_comes_to_its_end(shell: list[str]) -> None:
    done = subprocess.run(
        [*shell, "-s"], input=program(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    read_gathered(done.stdout.splitlines())


@pytest.mark.parametrize(
    "lines", [[], ["@adopt 1"], ["@end"], ["@adopt 1", "process 1 2", "@end"],
              ["@adopt 1", "container x !", "@end"]],
)  # fmt: skip
def test_an_answer_that_was_cut_or_broken_is_no_empty_node(lines: list[str]) -> None:
    with pytest.raises(NotGathered):
        read_gathered(lines)


def test_a_node_with_nothing_has_no_servers() -> None:
    assert servers(read_gathered(["login banner", "@adopt 1", "@end"])) == []


IMAGE = "lmsysorg/sglang:v0.5.23"


def of_text(text: str, name: str = "start.sh") -> Adopted:
    """Return what becomes of a text."""
    return adopt("gpu-1", read_text(text, name))


def told(adopted: Adopted) -> list[str]:
    """Return what is not carried over."""
    return [str(one) for one in (*adopted.lost, *(n for e in adopted.entries for n in e.lost))]


def compose(*services: str) -> str:
    """Return a compose file with these commands, each in a container that sees all GPUs."""
    return "services:\n" + "".join(
        f"  s{n}:\n    image: {IMAGE}\n    command: {one}\n    gpus: all\n"
        for n, one in enumerate(services)
    )


def test_a_variable_in_a_secret_s_place_is_named_and_its_value_is_not() -> None:
    found = of_text(
        compose("sglang serve Qwen/Qwen3-8B --api-key ${MY_KEY_FOR_IT}")
        + "    environment: {HF_TOKEN: '${HF_TOKEN}', A_PASSWORD: hunter2hunter2}\n",
        "compose.yaml",
    )
    said = told(found)
    assert any(one.startswith("${HF_TOKEN} of the compose file") for one in said)
    assert any("export it where you run apply" in one for one in said)
    assert any(one.startswith("${MY_KEY_FOR_IT} of the compose file") for one in said)
    assert not any("***" in one for one in said)
    assert "hunter2" not in json.dumps(found.as_dict())


def test_two_that_saw_all_gpus_and_took_the_first_are_said() -> None:
    one = "sglang serve --model-path Qwen/Qwen3-8B"
    found = of_text(
        compose(one, f"{one} --port 30001", f"{one} --port 30002 --base-gpu-id 1"), "c.yaml"
    )
    assert [each["gpus"] for each in found.data["services"]] == [[0], [0], [1]]
    (said,) = (each for each in told(found) if "GPU" in each)
    assert said == (
        "GPU 0 of s0 and s1: each of them took it: give each service GPUs of its own in gpus "
        "(nvidia-smi -L)"
    )


@pytest.mark.parametrize("before", ["", f"docker run --gpus all {IMAGE} "])
def test_a_model_is_the_first_word_behind_serve_as_sglang_reads_it(before: str) -> None:
    found = of_text(f"M=Qwen/Qwen3-8B\n{before}sglang serve $M --tp 2")
    assert found.data["services"][0]["model"] == "Qwen/Qwen3-8B"
    assert not any("belongs to no flag" in one for one in told(found))
    # launch_server takes no such word: SGLang itself would have refused it.
    other = of_text(f"{before}python3 -m sglang.launch_server Qwen/Qwen3-8B --tp 2")
    assert "model" not in other.data["services"][0]


@pytest.mark.parametrize("engine", ["podman", "nerdctl"])
def test_a_container_of_another_program_than_docker_is_said_to_be_its(engine: str) -> None:
    line = f"/usr/bin/{engine} run --name chat --restart=always {IMAGE} sglang serve Qwen/Qwen3-8B"
    found = of_text(line)
    assert any(
        one.startswith(f"{engine} run: the service's container is Docker's") for one in told(found)
    )
    assert found.entries[0].found.stop == (
        f"{engine} update --restart=no chat",
        f"{engine} stop --time=600 chat",
    )
    unit = of_text(f"[Service]\nExecStart={line}\n", "chat.service")
    assert any(one.startswith(f"{engine} run: ") for one in told(unit))
    assert not any("is Docker's" in one for one in told(of_text(line.replace(engine, "docker"))))
