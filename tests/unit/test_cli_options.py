"""The command line's own small parts: options of one box, targets, exit codes, private files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import pytest

from cli.exits import Exit, worst
from cli.inventory import TargetError, limited, load
from cli.keep import NotWritten, write_private
from cli.wishes import as_options, one_box
from plans.wishes import DEFAULT_OUTPUT_CAP, WishesError, read_wishes


def service(**options: Any) -> dict[str, Any]:
    """Return the one service that options amount to; they are valid wishes."""
    data = one_box({"model": "Qwen/Qwen3-8B", **options})
    assert data is not None
    read_wishes(data, "box")
    (found,) = data["services"]
    assert isinstance(found, dict)
    return found


def test_a_model_is_enough_and_the_rest_is_said() -> None:
    found = service()
    assert found["name"] == "qwen3-8b"
    assert found["output_cap"] == DEFAULT_OUTPUT_CAP


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/srv/models/Llama_3.1/", "llama-3-1"),
        ("meta/" + "x" * 60, "x" * 40),
        ("a/___", "sglang"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_a_service_is_named_after_its_model(model: str, name: str) -> None:
    data = one_box({"model": model})
    assert data is not None
    assert data["services"][0]["name"] == name


def test_arguments_have_the_type_that_they_look_like() -> None:
    found = service(
        argument=("mem-fraction-static=0.85", "trust-remote-code=true", 'x={"a": [1]}', "y=", "z=a: b: c"),
        env=("NCCL_DEBUG=a=b",),
    )  # fmt: skip
    assert found["arguments"] == {
        "mem-fraction-static": 0.85,
        "trust-remote-code": True,
        "x": {"a": [1]},
        "y": "",
        "z": "a: b: c",
    }
    assert found["environment"] == {"NCCL_DEBUG": "a=b"}


def test_gpus_are_indexes_or_uuids() -> None:
    assert service(gpus="0, 2")["gpus"] == [0, 2]
    assert service(gpus="GPU-1a")["gpus"] == ["GPU-1a"]
    assert service(gpus="all")["gpus"] == "all"


def test_what_holds_for_the_node_stands_beside_its_service() -> None:
    data = one_box({"model": "a/b", "release": "0.5.22", "unsupported": True, "port": None})
    assert data is not None
    assert (data["release"], data["unsupported"]) == ("0.5.22", True)
    assert "port" not in data["services"][0]


def test_the_hub_s_own_setting_for_a_mirror_holds_for_the_box() -> None:
    mirror = {"HF_ENDPOINT": "https://mirror.example.org"}
    data = one_box({"model": "a/b"}, mirror)
    assert data is not None
    assert data["hub"] == {"endpoint": "https://mirror.example.org"}
    assert one_box({"model": None}, mirror) is None
    data = one_box({"model": "a/b"}, {"HF_ENDPOINT": ""})
    assert data is not None
    assert "hub" not in data


def test_without_a_model_there_is_no_service() -> None:
    assert one_box({"model": None, "unsupported": False}) is None
    assert one_box({"unsupported": True}) == {"unsupported": True}
    with pytest.raises(click.UsageError, match="--tp-size goes with --model"):
        one_box({"tp_size": 2})


@pytest.mark.parametrize("option", ["argument", "env"])
@pytest.mark.parametrize("text", ["x", "=1"])
def test_a_pair_without_a_name_or_value_is_refused(option: str, text: str) -> None:
    with pytest.raises(click.UsageError, match="NAME=VALUE"):
        service(**{option: (text,)})


def test_a_key_and_a_token_are_named_by_where_they_are() -> None:
    data = one_box(
        {"model": "a/b", "api_key": "env:SITE_KEY", "hub_token": "command:pass show 'a b'"}
    )
    assert data is not None
    assert data["services"][0]["api_key"] == {"env": "SITE_KEY"}
    assert data["secrets"] == {"hub_token": {"command": ["pass", "show", "a b"]}}
    read_wishes(data, "box")
    assert service(api_key="file:/etc/a key")["api_key"] == {"file": "/etc/a key"}


@pytest.mark.parametrize("text", ["sk-123456", "key:sk-123456", "env:", "command:'sk-123456"])
def test_a_key_itself_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(click.UsageError, match="not what it is") as caught:
        service(api_key=text)
    assert "sk-123456" not in str(caught.value)


# --- the target


def inventory(folder: Path, text: str) -> str:
    """Write an inventory and return its path."""
    path = folder / "site.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def names(target: str, *limit: str) -> list[str]:
    """Return the names of the hosts that a target and limits leave."""
    loaded = load(target)
    chosen = limited(loaded, limit)
    return [host.name for host in (list(loaded) if chosen is None else chosen)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env": ("HF_TOKEN=x",)},
         "--env HF_TOKEN: SECRET_IN_ENVIRONMENT: write --hub-token env:HF_TOKEN"),
        ({"argument": ("api-key=x",)},
         "--argument api-key: SECRET_IN_ARGUMENTS: write --api-key env:NAME"),
        ({"argument": ("admin-api-key=x",)},
         "--argument admin-api-key: SECRET_IN_ARGUMENTS: write an inventory, with "
         "'admin_api_key': {'env': 'NAME'} in the service"),
        ({"env": ("A_PASSWORD=x",)}, "--env A_PASSWORD: SECRET_IN_ENVIRONMENT: leave it out"),
        ({"tp_size": 0}, "--tp-size: is 0"),
        ({"served_name": " "}, "--served-name: "),
        ({"model": "a b"}, "--model: "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_option_is_told_by_the_option(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(WishesError) as caught:
        read_wishes(one_box({"model": "Qwen/Qwen3-8B", **options}), "box")
    (message,) = caught.value.messages
    told = as_options(message, "box")
    assert told.startswith(said)
    assert "'secrets'" not in told
    assert as_options("box: something else: whatever", "box") == "box: something else: whatever"


def test_host_names_are_a_target() -> None:
    assert names("gpu-2,gpu-1 , gpu-3") == ["gpu-2", "gpu-1", "gpu-3"]
    assert names("@local") == ["@local"]


def test_an_inventory_keeps_its_order_and_its_groups(tmp_path: Path) -> None:
    target = inventory(
        tmp_path,
        "import os\n_hidden = ['no']\nb = ['z', ('a', {'x': 1})]\nc = (['m'], {'y': 2})\nn = 3\n",
    )
    assert names(target) == ["z", "a", "m"]
    assert names(target, "c") == ["m"]
    assert names(target, "site") == ["z", "a", "m"]
    assert names(target, "a*", "b") == ["a", "z"]


def test_data_of_host_group_and_all_come_together(tmp_path: Path) -> None:
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text(
        "from pathlib import Path\nk = 'all'\nz = 1\n_sudo = True\n__p = 2\n", encoding="utf-8"
    )
    target = inventory(tmp_path, "g = ([('a', {'k': 'host'}), 'b'], {'k': 'group'})\n")
    hosts = {host.name: host for host in load(target)}
    assert (hosts["a"].data.get("k"), hosts["b"].data.get("k")) == ("host", "group")
    assert hosts["b"].data.get("z") == 1
    # As pyinfra itself: one underscore begins its own arguments, two what is a module's own.
    assert hosts["b"].data.get("_sudo") is True
    assert hosts["b"].data.get("__p") is None
    assert hosts["b"].data.get("Path") is None


def test_data_of_one_box_is_given_over_what_is_there(tmp_path: Path) -> None:
    target = inventory(tmp_path, "g = (['a'], {'sglang': 1})\n")
    (host,) = load(target, {"sglang": 2})
    assert host.data.get("sglang") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "names no hosts"),
        ("\nraise ValueError('boom')\n", "line 2: ValueError: boom"),
        ("g = [\n", "SyntaxError"),
    ],
)
def test_an_inventory_that_is_no_good_is_refused_with_the_place(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(TargetError, match=said):
        load(inventory(tmp_path, text))


def test_targets_and_limits_that_are_not_there_are_named(tmp_path: Path) -> None:
    for target in ("nowhere.py", "./nowhere", " , "):
        with pytest.raises(TargetError):
            load(target)
    with pytest.raises(TargetError, match="hosts: a, b"):
        names("a,b", "c*")


def test_a_directory_is_told_apart_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"is a directory: name an inventory file in it$"):
        load(str(tmp_path))
    (tmp_path / "site.py").write_text("nodes = ['a']\n", encoding="utf-8")
    with pytest.raises(TargetError, match=f"in it, such as {tmp_path}/site.py"):
        load(f"{tmp_path}/")


# --- exits and files


def test_the_first_of_the_exit_codes_in_their_order_is_the_runs() -> None:
    assert worst([]) is Exit.OK
    assert worst([Exit.PENDING, Exit.REFUSED]) is Exit.REFUSED
    assert worst([Exit.REFUSED, Exit.UNVERIFIED, Exit.FAILED]) is Exit.FAILED
    assert worst([Exit.FAILED, Exit.USAGE]) is Exit.USAGE
    assert worst([Exit.USAGE, Exit.INTERRUPTED]) is Exit.INTERRUPTED
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 5, 130]


def test_what_is_kept_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        write_private(path, "new")
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_nothing_behind_and_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()  # nothing is renamed over a directory
    with pytest.raises(NotWritten, match=f"^{path} could not be written: "):
        write_private(path, "text")
    assert list(tmp_path.iterdir()) == [path]
