"""adopt through the whole command line, over nodes that answer with what the program prints."""

from __future__ import annotations

import base64
import runpy
from pathlib import Path
from typing import Any

import pytest

from .command import fake, inventory, recording, run

KEY = "stood-in-argv"


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def process(pid: int, words: str, environment: str = "HOME=/home/me", belongs: str = "-") -> str:
    fields = [
        "\0".join(words.split()) + "\0",
        environment.replace(" ", "\0"),
        "/home/me.",
        "0.5.23.",
    ]
    return " ".join(["process", str(pid), "1", belongs, *map(packed, fields)])


def node(name: str, *lines: str, end: str = "@end") -> tuple[str, dict[str, Any]]:
    """Return a host that answers adopt with these lines, and the survey as two L4."""
    host, data = fake(name, recording("two-l4-no-toolkit"), ssh_user="root")
    data["fake_responses"]["sglang-adopt"] = ["@adopt 1", *lines, end]
    return host, data


SERVER = process(
    77,
    "/home/me/venv/bin/python3 -m sglang.launch_server --model Qwen/Qwen3-8B --tp 2 "
    f"--port 8000 --api-key {KEY}",
    "HOME=/home/me EDITOR=vi NCCL_DEBUG=INFO SSH_CONNECTION=10.0.0.1",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory of a node with a server, one with none, and one whose answer was cut."""
    folder = tmp_path_factory.mktemp("adopt")
    hosts = [node("one", SERVER), node("none", process(8, "grep sglang x")),
             node("cut", SERVER, end="")]  # fmt: skip
    return inventory(folder, *hosts, services=[])


def test_each_node_ends_by_itself(site: Path) -> None:
    written = site.parent / "adopted.py"
    ended = run("adopt", site, "--json", "--out", written, "-vvv")
    assert ended.code == 1
    one, none, cut = ended.nodes.values()
    assert (none["error"]["code"], cut["error"]["code"]) == ("NOTHING_TO_ADOPT", "SURVEY_FAILED")
    (found,) = one["found"]
    assert (found["kind"], found["stop"]) == ("process", ["kill -TERM 77"])
    assert "requests in flight are finished" in found["requests"]
    assert one["plan"]["node"] == "@fake/one"
    assert KEY not in ended.out + ended.err + written.read_text(encoding="utf-8")
    ((name, data),) = runpy.run_path(str(written))["gpu_nodes"]
    assert (name, data["ssh_user"]) == ("@fake/one", "root")
    assert data["sglang"] == {
        "services": [
            {
                "name": "qwen3-8b", "model": "Qwen/Qwen3-8B", "release": "0.5.23",
                "runtime": "wheel", "port": 8000, "tp_size": 2, "output_cap": 16384,
                "api_key": {"env": "SGLANG_API_KEY"}, "environment": {"NCCL_DEBUG": "INFO"},
            }
        ],
        "paths": {"weights": "/home/me/.cache/huggingface"},
    }  # fmt: skip


def test_people_read_the_inventory_the_plan_and_what_to_stop(site: Path) -> None:
    ended = run("adopt", site, "--limit", "@fake/one")
    assert '"model": "Qwen/Qwen3-8B",' in ended.out
    assert "api-key stood in the argument list of process 77" in ended.out
    assert "before apply, stop process 77 by hand:" in ended.out
    assert "$ kill -TERM 77" in ended.out
    assert "sglang-node lock inventories/site.py" in ended.out


def test_an_inventory_that_is_there_is_never_written_over(site: Path) -> None:
    before = site.read_text(encoding="utf-8")
    ended = run("adopt", site, "--out", site)
    assert ended.code == 2
    assert site.read_text(encoding="utf-8") == before


def test_a_text_is_read_with_no_node_and_planned_from_a_recorded_survey(tmp_path: Path) -> None:
    text = tmp_path / "run.sh"
    text.write_text("docker run --name llm --gpus all -p 127.0.0.1:8000:30000 -v /hf:/root/.cache/"
                    "huggingface lmsysorg/sglang:v0.5.23 sglang serve --model-path Qwen/Qwen3-8B "
                    "--host 0.0.0.0", encoding="utf-8")  # fmt: skip
    ended = run("adopt", "t4", "--from", text, "--survey", "inventories/demo", "--json")
    assert ended.code == 3  # a T4 has no code in that release
    (one,) = ended.json["nodes"]
    assert one["entry"]["services"][0]["port"] == 8000
    assert one["plan"]["refusals"]
    assert one["found"][0]["stop"] == ["docker stop --time=600 llm"]
    assert run("adopt", "a,b", "--from", text).code == 2
    assert run("adopt", "a", "--survey", "inventories/demo").code == 2
    text.write_text("ls", encoding="utf-8")
    ended = run("adopt", "gpu-1", "--from", text)
    assert ended.code == 2
    assert "starts no server of SGLang" in ended.err


def test_what_comes_next_begins_with_what_is_to_be_written_by_hand(tmp_path: Path) -> None:
    text = tmp_path / "run.sh"
    text.write_text("docker run --gpus all lmsysorg/sglang:v0.5.23 sglang serve", encoding="utf-8")
    ended = run("adopt", "a", "--from", text)
    last = ended.out.rstrip().splitlines()[-1]
    assert last.startswith(
        "keep the inventory above as inventories/site.py, complete it with what is to be written "
        "by hand; only then: sglang-node lock inventories/site.py; "
    )
    ended = run("adopt", "a", "--from", text, "--out", tmp_path / "site.py")
    assert ended.out.rstrip().splitlines()[-1].startswith(f"complete {tmp_path}/site.py with what")
