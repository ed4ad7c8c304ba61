"""Where secrets are written down, and that no message ever repeats one."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploys.secrets import Reader, SecretUnread, read_secrets
from plans.sources import Source, read_source, secret_argument, secret_data, secret_variable
from plans.wishes import WishesError, read_wishes
from releases.table import RELEASES
from tests.unit.surveys import wishes

VALUE = "sk-" + "q7" * 20
CHAT: dict[str, Any] = {"name": "chat", "model": "Qwen/Qwen3-8B"}


def said(service: dict[str, Any], **node: Any) -> list[str]:
    """Return the messages with which an inventory is refused."""
    with pytest.raises(WishesError) as caught:
        read_wishes({"services": [CHAT | service], **node}, "gpu-01")
    return caught.value.messages


@pytest.mark.parametrize(
    ("given_source", "text"),
    [
        ({"env": "KEY"}, "the variable KEY"),
        ({"file": "/etc/key"}, "the file /etc/key"),
        ({"file": "~/key"}, "the file ~/key"),
        ({"command": ["pass", "show", VALUE]}, "the command pass"),
    ],
)
def test_a_source_says_where_a_secret_is(given_source: dict[str, Any], text: str) -> None:
    source = read_source(given_source)
    assert str(source) == text
    assert VALUE not in repr(source)


@pytest.mark.parametrize(
    "bad",
    [
        VALUE,
        [VALUE],
        {"env": VALUE},
        {"env": [VALUE]},
        {"file": VALUE},
        {"file": {"x": VALUE}},
        {"command": VALUE},
        {"command": [VALUE, 1]},
        {"command": []},
        {VALUE: "x"},
        {"value": VALUE},
        {"env": "KEY", "file": VALUE},
        {},
        True,
    ],
)
def test_a_secret_where_its_place_should_stand_is_refused_and_not_repeated(bad: Any) -> None:
    for messages, key in (
        (said({"api_key": bad}), "gpu-01: services[chat].api_key: "),
        (said({}, secrets={"hub_token": bad}), "gpu-01: secrets.hub_token: "),
    ):
        assert len(messages) == 1
        assert messages[0].startswith(key)
        assert "write" in messages[0]
        assert VALUE not in messages[0]


@pytest.mark.parametrize("name", ["api-key", "api_key", "--api-key", "ADMIN_API_KEY", "hf-token"])
def test_a_secret_argument_is_refused_with_what_to_write(name: str) -> None:
    (message,) = said({"arguments": {name: VALUE}})
    assert message.startswith(f"gpu-01: services[chat].arguments.{name}: SECRET_IN_ARGUMENTS: ")
    assert "write '" in message
    assert VALUE not in message


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "OPENAI_API_KEY", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY", "X_SECRET"],
)
def test_a_secret_variable_is_refused_with_what_to_do(name: str) -> None:
    (message,) = said({"environment": {name: VALUE}})
    assert message.startswith(f"gpu-01: services[chat].environment.{name}: SECRET_IN_ENVIRONMENT: ")
    assert VALUE not in message


def test_names_of_ordinary_things_are_not_taken_for_secrets() -> None:
    secret = {flag for one in RELEASES.values() for flag in one.flags if secret_argument(flag)}
    assert secret == {"api-key", "admin-api-key", "ssl-keyfile-password"}
    for name in ("NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "SGLANG_TOKENIZER_WORKERS", "MONKEY"):
        assert secret_variable(name) is None


def test_everything_that_is_wrong_is_said_at_once() -> None:
    messages = said({"port": 1, "arguments": {"api-key": VALUE}, "environment": {"HF_TOKEN": "x"}})
    assert len(messages) == 3


def test_an_admin_key_alone_is_refused() -> None:
    (message,) = said({"admin_api_key": {"env": "A"}})
    assert "goes with api_key" in message


ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.just(VALUE)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["env", "file", "command", "api-key", "HF_TOKEN", "hub_token", VALUE]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@given(
    ANY,
    st.sampled_from(["api_key", "admin_api_key", "arguments", "environment", "secrets"]),
    st.sampled_from(["api-key", "hf_token", "HF_TOKEN", "MY_API_KEY"]),
)
def test_no_message_repeats_what_stands_where_a_secret_may(value: Any, key: str, name: str) -> None:
    node: dict[str, Any] = {}
    service: dict[str, Any] = {}
    if key == "secrets":
        node = {"secrets": {"hub_token": value}}
    elif key in ("arguments", "environment"):
        service = {key: {name: value}}
    else:
        service = {key: value}
    try:
        shown = repr(read_wishes({"services": [CHAT | service], **node}, "gpu-01"))
    except WishesError as error:
        shown = repr(error) + "\n".join(error.messages)
    assert VALUE not in shown


# --- read on the controller


def read(source: dict[str, Any], warnings: list[str] | None = None) -> str:
    """Return the value that a source gives."""
    reader = Reader((warnings if warnings is not None else []).append)
    made = read_source(source)
    assert made is not None
    return reader.read(made, is_key=True).reveal()


def test_one_line_break_at_the_end_is_no_part_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(f"{VALUE}\n", encoding="utf-8")
    monkeypatch.setenv("SITE_KEY", VALUE)
    assert read({"file": str(path)}) == VALUE
    assert read({"env": "SITE_KEY"}) == VALUE
    assert read({"command": ["cat", str(path)]}) == VALUE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        (f"{VALUE}\n{VALUE}", "several lines"),
        (f"{VALUE} ", "other characters"),
        (f'{VALUE}"', "other characters"),
        ("-" + VALUE, "begins with a dash"),
        ("short", "fewer than 8"),
        ("k" * 5000, "has 5000 characters"),
        ("k" * 50_000, "gives more than 4096 characters"),
        ("schlüssel-mit-ü", "other characters"),
    ],
)
def test_what_is_no_key_is_refused_without_repeating_it(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SecretUnread, match=why) as caught:
        read({"file": str(path)})
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_file_that_others_read_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(VALUE, encoding="utf-8")
    path.chmod(0o644)
    warnings: list[str] = []
    assert read({"file": str(path)}, warnings) == VALUE
    assert warnings == [f"{path} can be read by others on this machine: chmod 600 {path}"]


def test_a_source_that_gives_none_says_why(tmp_path: Path) -> None:
    for source, why in (
        ({"file": str(tmp_path / "none")}, "no such file"),
        ({"file": str(tmp_path)}, "is a directory"),
        ({"env": "NOT_SET_ANYWHERE"}, "is not set"),
        ({"command": ["/nonexistent/program"]}, "could not be started"),
        ({"command": ["false"]}, "ended with 1"),
    ):
        with pytest.raises(SecretUnread, match=why):
            read(source)


def test_a_command_is_run_without_a_shell_and_its_output_is_not_shown() -> None:
    program = f"import sys; print({VALUE!r}); print('warm', {VALUE!r}, file=sys.stderr)"
    warnings: list[str] = []
    assert read({"command": [sys.executable, "-c", program]}, warnings) == VALUE
    assert warnings == [f"the command {sys.executable}: warm *MASKED*"]
    with pytest.raises(SecretUnread):
        read({"command": ["echo $HOME; true"]})


def test_a_source_is_read_once_for_all_nodes(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = tmp_path / "give"
    script.write_text(f"#!/bin/sh\necho x >> {count}\necho {VALUE}\n", encoding="utf-8")
    script.chmod(stat.S_IRWXU)
    wanted = wishes(
        {"api_key": {"command": [str(script)]}}, {"api_key": {"command": [str(script)]}}
    )
    reader = Reader(lambda line: None)
    found = [read_secrets(reader, wanted) for _ in range(3)]
    assert found[0].keys["chat1"]["api-key"].reveal() == VALUE
    assert count.read_text(encoding="utf-8") == "x\n"
    assert VALUE not in repr(found)
    assert VALUE not in repr(reader)


def test_what_could_not_be_read_is_named_by_its_key() -> None:
    wanted = wishes(
        {"api_key": {"env": "NOT_SET_ANYWHERE"}}, secrets={"hub_token": {"file": "/none"}}
    )
    assert "NOT_SET_ANYWHERE" not in os.environ
    found = read_secrets(Reader(lambda line: None), wanted)
    assert [line.split(":")[0] for line in found.unread] == [
        "secrets.hub_token",
        "services[chat].api_key",
    ]


def test_the_data_of_names_is_whole() -> None:
    assert set(secret_data()) == {
        "arguments",
        "argument_pattern",
        "argument_otherwise",
        "environment",
        "environment_pattern",
        "environment_otherwise",
        "journal",
    }
    assert Source(env="X").command is None
