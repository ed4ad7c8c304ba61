"""The operator's data: what is taken, and that each message names the key and what to write."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from plans.examples import EXAMPLES
from plans.wishes import Service, Wishes, WishesError, read_wishes
from tests.unit.surveys import wish

CHAT: dict[str, Any] = {"name": "chat", "model": "Qwen/Qwen3-8B"}


def read(*services: dict[str, Any], **more: Any) -> Wishes:
    """Return the wishes of a node with these services (one good one where none is given)."""
    return read_wishes({"services": list(services) or [CHAT], **more}, "gpu-01")


def messages(*services: dict[str, Any], **more: Any) -> list[str]:
    """Return the messages with which the data is refused."""
    with pytest.raises(WishesError) as caught:
        read(*services, **more)
    return caught.value.messages


def one(**changes: Any) -> str:
    """Return the one message that a service with these changes gets."""
    found = messages(CHAT | changes)
    assert len(found) == 1, found
    return found[0]


def test_the_least_that_can_be_written() -> None:
    wanted = read()
    service = wanted.services[0]
    assert (service.port, service.address, service.tp_size) == (30000, "127.0.0.1", 1)
    assert service.gpus == "all"
    assert not service.is_local
    assert service.public_name == "Qwen/Qwen3-8B"
    assert not any((wanted.forward_compat, wanted.cu129_override, wanted.unsupported))


def test_nothing_dangerous_is_a_default() -> None:
    service, wanted = wish()
    assert service.address == "127.0.0.1"
    assert service.output_cap is None, "a cap is offered, never taken silently"
    assert wanted.runtime_of(service) == "auto"


def test_a_service_overrides_its_node() -> None:
    wanted = read(
        CHAT | {"release": "0.5.22", "runtime": "image"},
        {"name": "embed", "model": "BAAI/bge-m3", "port": 30001},
        release="0.5.23",
        runtime="auto",
    )
    first, second = wanted.services
    assert (wanted.release_of(first), wanted.release_of(second)) == ("0.5.22", "0.5.23")
    assert (wanted.runtime_of(first), wanted.runtime_of(second)) == ("image", "auto")


def test_lists_and_tuples_are_the_same() -> None:
    assert read(CHAT | {"gpus": [0, 1]}) == read(CHAT | {"gpus": (0, 1)})


@pytest.mark.parametrize("name", ["chat", "chat-2", "a_b", "qwen3-8b", "7"])
def test_names_that_are_taken(name: str) -> None:
    assert read(CHAT | {"name": name}).services[0].name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Chat",
        "my chat",
        "The answer to everything.",
        "a--b",
        "-a",
        "a-",
        "a/b",
        "ä",
        "a.b",
        "a" * 41,
        "a%i",
        "a@b",
    ],
)
def test_names_that_are_not_say_what_to_write(name: str) -> None:
    text = one(name=name)
    assert text.startswith("gpu-01: services[")
    assert ".name: " in text
    assert "lower case letters and digits" in text
    assert "served_name" in text


def test_a_sentence_is_fine_as_the_name_that_clients_see() -> None:
    assert read(CHAT | {"served_name": "Our own model"}).services[0].public_name == "Our own model"


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"model": "../model"}, "model", "absolute path"),
        ({"model": "~/model"}, "model", "absolute path"),
        ({"model": "a b"}, "model", "Qwen/Qwen3-8B"),
        ({"model": "/srv/../etc"}, "model", ".."),
        ({"model": "/srv/my model"}, "model", "white space"),
        ({"model": "/srv/a:b"}, "model", "white space or one of"),
        ({"port": 80}, "port", "1024"),
        ({"port": 70000}, "port", "65535"),
        ({"port": True}, "port", "write a number"),
        ({"port": "http"}, "port", "'http'"),
        ({"address": "localhost"}, "address", "127.0.0.1"),
        ({"tp_size": 0}, "tp_size", "1"),
        ({"tp_size": True}, "tp_size", "write a number"),
        ({"gpus": 0}, "gpus", "[0, 1]"),
        ({"gpus": "0,1"}, "gpus", "[0, 1]"),
        ({"gpus": []}, "gpus", "'all'"),
        ({"gpus": [True]}, "gpus", "indexes"),
        ({"gpus": [-1]}, "gpus", "indexes"),
        ({"gpus": ["first"]}, "gpus", "UUIDs"),
        ({"gpus": [0, 0]}, "gpus", "twice"),
        ({"revision": "-x"}, "revision", "a branch"),
        ({"revision": "a b"}, "revision", "a branch"),
        ({"revision": "a/../b"}, "revision", "a branch"),
        ({"revision": ""}, "revision", "a branch"),
        ({"model": "Qwen//Qwen3"}, "model", "absolute path"),
        ({"model": "a/b--c"}, "model", "absolute path"),
        ({"model": "x" * 97}, "model", "absolute path"),
        ({"served_name": "a:b"}, "served_name", "plain name"),
        ({"served_name": " "}, "served_name", "plain name"),
        ({"environment": {"A B": "1"}}, "environment", "letters, digits and _"),
        ({"environment": {"A": 1}}, "environment", "'1'"),
        ({"environment": {"A": True}}, "environment", "'1'"),
        ({"environment": {"A": "x\ny"}}, "environment", "line break"),
        ({"environment": ["A=1"]}, "environment", "{'NAME': 'value'}"),
        ({"arguments": ["--tp", "2"]}, "arguments", "{'mem-fraction-static': 0.85}"),
        ({"arguments": {"a": {1, 2}}}, "arguments", "a number, a list or a mapping"),
        ({"arguments": {"a": float("nan")}}, "arguments", "a number, a list or a mapping"),
        ({"output_cap": 0}, "output_cap", "1"),
        ({"silence_limit": -1}, "silence_limit", "0"),
        ({"kind": "chat"}, "kind", "generate"),
        ({"runtime": "docker"}, "runtime", "image"),
        ({"shm_size": "32 GB"}, "shm_size", "32 GB"),
    ],
)
def test_a_message_names_node_key_and_what_to_write(
    changes: dict[str, Any], key: str, says: str
) -> None:
    text = one(**changes)
    assert text.startswith("gpu-01: services[chat]."), text
    assert f".{key}: " in text or f".{key}[" in text, text
    assert says in text, text


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("tp-size", "tp_size"),
        ("tp", "tp_size"),
        ("env", "environment"),
        ("gpu", "gpus"),
        ("outputcap", "output_cap"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest(given: str, near: str) -> None:
    text = one(**{given: 1})
    assert f".{given}: is no key of ours" in text
    assert near in text


def test_a_flag_of_the_server_as_a_key_is_told_where_it_goes() -> None:
    assert "'arguments'" in one(mem_fraction_static=0.8)


def test_a_missing_key_is_told_with_an_example() -> None:
    assert "'name': 'chat'" in messages({"model": "Qwen/Qwen3-8B"})[0]
    assert "Qwen/Qwen3-8B" in messages({"name": "chat"})[0]
    with pytest.raises(WishesError, match=r"services: is missing: write it, such as"):
        read_wishes({}, "gpu-01")


def test_data_that_is_no_mapping_is_told() -> None:
    with pytest.raises(WishesError, match=r"gpu-01: sglang: is list: write a mapping"):
        read_wishes([CHAT], "gpu-01")


def test_every_message_is_given_at_once() -> None:
    found = messages(CHAT | {"port": 80, "tp_size": 0, "address": "here"}, releese="0.5.23")
    assert len(found) == 4
    assert any("releese" in text and "write release" in text for text in found)


def test_services_must_be_apart() -> None:
    assert "two are named 'chat'" in messages(CHAT, CHAT | {"port": 30001})[0]
    text = messages(CHAT, CHAT | {"name": "other"})[0]
    assert "chat and other both have port 30000" in text
    assert "30001" in text
    with pytest.raises(WishesError, match="name one service at least"):
        read_wishes({"services": []}, "gpu-01")


def test_paths_must_be_absolute() -> None:
    assert "paths.weights" in messages(paths={"weights": "models"})[0]
    assert read(paths={"weights": "/srv/models"}).paths.weights == "/srv/models"


def test_wishes_cannot_be_changed_after_they_were_read() -> None:
    service, wanted = wish()
    with pytest.raises(ValueError, match="frozen"):
        service.port = 1
    with pytest.raises(ValueError, match="frozen"):
        wanted.release = "0.5.22"


def test_every_key_of_a_service_can_be_written() -> None:
    assert {"name", "model", "gpus", "output_cap"} <= set(Service.model_fields)


@pytest.mark.parametrize("place", EXAMPLES)
def test_a_key_of_the_wrong_type_is_told_with_an_example_of_that_key_that_is_valid(
    place: str,
) -> None:
    def with_value(value: Any) -> dict[str, Any]:
        keys = place.replace("[]", ".[]").split(".")
        for key in reversed(keys[1:]):
            value = [value] if key == "[]" else {key: value}
        if keys[0] == "services" and place != "services[]" and len(keys) > 1:
            value = [CHAT | value[0]]
        return {"services": [CHAT], keys[0]: value}

    example = ast.literal_eval(EXAMPLES[place])
    read_wishes(with_value(example), "gpu-01")
    with pytest.raises(WishesError) as caught:
        read_wishes(with_value(3), "gpu-01")
    (message,) = caught.value.messages
    kind = "list" if isinstance(example, list) else "mapping"
    assert message.endswith(f": is 3: write a {kind}, such as {EXAMPLES[place]}") or (
        place == "secrets" and message.endswith(f"write a {kind}, such as {EXAMPLES[place]}")
    )


@pytest.mark.parametrize(
    "data",
    [
        {"collect": {"keep": "3"}},
        {"collect": {"older_than_days": "30"}},
        {"hooks": {"before_stop": [{"run": "true", "limit": "60"}]}},
        {"hooks": {"before_stop": [{"run": "true", "limit": True}]}},
        {"services": [CHAT | {"port": "30000"}]},
        {"services": [CHAT | {"tp_size": "1"}]},
        {"services": [CHAT | {"ulimits": {"nofile": "1"}}]},
    ],
)
def test_a_number_that_is_written_as_text_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(WishesError, match="write a number"):
        read_wishes({"services": [CHAT], **data}, "gpu-01")


@pytest.mark.parametrize("run", ["lb drain\nlb check", "lb drain\r", "", " ", "a\0b", ["lb"]])
def test_a_hook_is_one_line_of_shell(run: Any) -> None:
    (message,) = messages(hooks={"after_verify": [{"run": run}]})
    assert message == (
        "gpu-01: hooks.after_verify[0].run: is no command: write a line of shell, such as "
        "'lb-ctl drain $NODE'"
    )
