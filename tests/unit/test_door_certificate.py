"""The door's certificate: what an inventory may say, what a survey tells, what a plan refuses."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from deploys.node import request_for
from facts.parsing import parse_survey
from facts.records import ABSENT, DoorTls, Survey, Unknown
from facts.survey import PROGRAM
from plans.door import switch
from plans.launch import TEMPLATES
from plans.metrics import metrics
from plans.wishes import WishesError
from tests.unit.certificates import pair
from tests.unit.deployments import codes, kinds
from tests.unit.doorplans import bare, door_plan, of_door, stands
from tests.unit.surveys import wishes

SHELLS = [shell for shell in (["dash"], ["busybox", "ash"], ["bash"]) if shutil.which(shell[0])]
FILES = {"certificate": "/etc/ssl/door/fullchain.pem", "key": "/etc/ssl/door/privkey.pem"}
GOOD, KEY = pair()


def seen(certificate: Any = GOOD, key: str = "fits", node: Survey | None = None) -> Survey:
    """Return a survey that read this certificate, on a node whose clock is right."""
    node = node or bare()
    return replace(
        node,
        host=replace(node.host, time_epoch=int(time.time())),
        door=replace(node.door, tls=DoorTls(certificate, key)),
    )


def planned(node: Survey, **tls: Any) -> Any:
    return door_plan(node, {"tls": FILES | tls})


# --- what may be asked for


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"certificate": "/etc/a/b.pem"}, "door.tls.key: is missing"),
        (FILES | {"key": KEY}, "door.tls.key: holds the thing itself"),
        (FILES | {"key": {"env": "KEY"}}, "door.tls.key: is no text: write the path of a file"),
        (FILES | {"certificate": "~/a.pem"}, "door.tls.certificate: is no path"),
        (FILES | {"certificate": "/etc/../a.pem"}, "door.tls.certificate: is no path"),
        (FILES | {"name": "https://llm"}, "door.tls.name: is 'https://llm': write a name"),
    ],
)
def test_what_is_wrong_with_tls_is_said_with_its_key(tls: dict[str, Any], said: str) -> None:
    with pytest.raises(WishesError) as caught:
        wishes(door={"port": 8000, "tls": tls})
    assert any(said in line for line in caught.value.messages), caught.value.messages
    assert "BEGIN" not in str(caught.value)


def test_the_files_are_asked_for_where_the_door_has_tls_alone() -> None:
    assert request_for(wishes(door={"port": 8000})).door_tls is None
    request = request_for(wishes(door={"port": 8000, "tls": FILES}))
    assert f"tls={FILES['certificate']}" in request.words()
    assert f"tls-key={FILES['key']}" in request.words()


# --- what the survey tells


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
@pytest.mark.parametrize(
    ("what", "word"),
    [("pair", "fits"), ("another's", "differs"), ("passphrase", "encrypted"), ("none", "absent")],
)
def test_the_survey_says_whether_the_key_fits_and_nothing_of_the_key(
    tmp_path: Path, shell: list[str], what: str, word: str
) -> None:
    certificate, key = pair(passphrase="open" if what == "passphrase" else None)
    if what == "another's":
        key = KEY
    (tmp_path / "cert.pem").write_text(certificate)
    if what != "none":
        (tmp_path / "key.pem").write_text(key)
    out, found = surveyed(tmp_path, shell)
    assert found.door.tls == DoorTls(certificate.strip(), word)
    assert "PRIVATE" not in out
    assert key.splitlines()[1] not in out


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
@pytest.mark.parametrize("first", ["key", "certificate"])
def test_of_a_file_that_holds_the_key_too_nothing_leaves_the_node_and_the_plan_refuses_it(
    tmp_path: Path, shell: list[str], first: str
) -> None:
    both = KEY + GOOD if first == "key" else GOOD + KEY
    (tmp_path / "cert.pem").write_text(both)
    (tmp_path / "key.pem").write_text(KEY)
    out, found = surveyed(tmp_path, shell)
    assert found.door.tls == DoorTls(ABSENT, "holds-key")
    assert "PRIVATE" not in out
    assert not [line for line in KEY.splitlines() if line in out]
    made = planned(replace(seen(), door=replace(bare().door, tls=found.door.tls)))
    assert codes(made) == ["DOOR_CERTIFICATE_UNREAD"]
    assert "holds a private key too" in made.refusals[0].seen


@pytest.mark.parametrize("tool", ["python3", "openssl"])
def test_either_tool_compares_and_without_any_it_is_not_known(tmp_path: Path, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here")
    (tmp_path / "cert.pem").write_text(GOOD)
    for name, text, word in (("key.pem", KEY, "fits"), ("key.pem", pair()[1], "differs")):
        (tmp_path / name).write_text(text)
        other = {"python3": "openssl", "openssl": "python3"}[tool]
        assert surveyed(tmp_path, SHELLS[0], without=(other,))[1].door.tls.key == word
        both = surveyed(tmp_path, SHELLS[0], without=("python3", "openssl"))[1]
        assert both.door.tls.key == "unknown"


def surveyed(root: Path, shell: list[str], without: tuple[str, ...] = ()) -> tuple[str, Survey]:
    """Run the survey's program over two files; ``without``: programs that are not on this node."""
    text = PROGRAM.read_text()
    for name in without:
        text = text.replace(f"have {name}", "false").replace(
            f"for python in {name}", "for python in no"
        )
    program = root / "survey.sh"
    program.write_text(text)
    words = [f"tls={root}/cert.pem", f"tls-key={root}/key.pem"]
    done = subprocess.run(
        [*shell, str(program), "version=1", "deadline=20", *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    return done.stdout, parse_survey(done.stdout.split("\n"), "node")


def test_a_certificate_that_is_not_there_is_told_as_absent(tmp_path: Path) -> None:
    assert surveyed(tmp_path, SHELLS[0])[1].door.tls == DoorTls(ABSENT, ABSENT)


# --- what a plan makes of it


def test_a_good_pair_is_linked_for_the_door_and_its_end_is_said() -> None:
    made = planned(seen(), name="llm.example.org")
    assert codes(made) == []
    said = " ".join(made.reasons)
    assert "its certificate is for llm.example.org, until 20" in said
    program = switch(of_door(made))
    assert f"place key {FILES['key']}\n" in program
    assert "systemctl start sglang-door-renew.timer" in program
    assert "systemctl stop sglang-door-renew.timer" in switch(of_door(door_plan()))


@pytest.mark.parametrize(
    ("node", "tls", "code"),
    [
        (seen(ABSENT), {}, "DOOR_CERTIFICATE_UNREAD"),
        (seen(Unknown("unreadable", "no permission")), {}, "DOOR_CERTIFICATE_UNREAD"),
        (seen("-----BEGIN CERTIFICATE-----\nnone\n"), {}, "DOOR_CERTIFICATE_UNREAD"),
        (seen("a text"), {}, "DOOR_CERTIFICATE_UNREAD"),
        *((seen(key=word), {}, "DOOR_CERTIFICATE_KEY")
          for word in ("differs", "encrypted", "unreadable", "absent", "unknown", "other")),
        (seen(pair(begins=-100)[0]), {}, "DOOR_CERTIFICATE_DATES"),
        (seen(pair(begins=2)[0]), {}, "DOOR_CERTIFICATE_DATES"),
        (seen(), {"name": "other.example.org"}, "DOOR_CERTIFICATE_NAME"),
        (seen(pair("*.example.org")[0]), {"name": "a.b.example.org"}, "DOOR_CERTIFICATE_NAME"),
    ],
)  # fmt: skip
def test_what_clients_would_not_take_is_refused(node: Survey, tls: Any, code: str) -> None:
    assert codes(planned(node, **tls)) == [code]


def test_a_star_is_for_one_label() -> None:
    assert codes(planned(seen(pair("*.example.org")[0]), name="LLM.example.org")) == []


def test_one_that_ends_soon_is_warned_of() -> None:
    for days, warned in ((10, True), (30, False)):
        made = planned(seen(pair(days=days + 1)[0]))
        assert codes(made) == []
        assert ("DOOR_CERTIFICATE_ENDS" in [one.code for one in made.cautions]) == warned


def test_a_renewed_certificate_that_the_door_has_not_taken_is_a_change() -> None:
    shown = runpy.run_path(str(TEMPLATES / "door.py"))["count"]
    node = stands(planned(seen()), bare())
    node = replace(node, door=replace(node.door, certificate=shown(GOOD)))
    assert kinds(planned(seen(node=node))) == []
    assert kinds(planned(seen(pair()[0], node=node))) == ["renew"]


def test_the_end_of_the_certificate_is_among_the_metrics() -> None:
    node = replace(bare(), door=replace(bare().door, until="1803758680"))
    name = "sglang_door_certificate_end_timestamp_seconds"
    assert f'{name}{{node="{node.node}"}} 1803758680\n' in metrics([node], [], 1.0)
    assert name not in metrics([bare()], [], 1.0)


# --- what the door itself takes


def tls_of(certificate: str, key: str, name: str | None = None, *, alone: bool = False) -> Any:
    program = runpy.run_path(str(TEMPLATES / "door.py"))
    given = {"certificate": certificate, "key": key}
    try:
        return program["tls_of"](given, {"name": name}, alone)
    except program["Refused"] as problem:
        return str(problem)


def test_the_door_takes_a_pair_and_says_its_end() -> None:
    context, lines = tls_of(GOOD, KEY, "llm.example.org")
    assert context.minimum_version.name == "TLSv1_2"
    assert [line.split()[0] for line in lines] == ["certificate", "until"]
    end = x509.load_pem_x509_certificate(GOOD.encode()).not_valid_after_utc
    assert int(lines[1].split()[1]) == end.timestamp()


def test_the_door_takes_nothing_that_clients_would_not() -> None:
    assert "do not fit" in tls_of(GOOD, pair()[1])
    assert "passphrase" in tls_of(*pair(passphrase="open"))
    assert "do not fit" in tls_of("", "")
    assert "Hostname mismatch" in tls_of(GOOD, KEY, "other.example.org")
    over = pair(begins=-100)
    assert "has expired" in tls_of(*over)
    # A node that starts with one that has ended has a door all the same.
    assert tls_of(*over, alone=True)[0] is not None
