"""Secrets in whole runs of the command line: read before any node is touched, and never shown."""

from __future__ import annotations

from pathlib import Path

from tests.fake.command import CHAT, fake, inventory, recording, run

KEY = "sk-" + "q7" * 20
TOKEN = "hf_" + "t7" * 17
L4 = recording("two-l4-no-toolkit")


def test_an_apply_whose_secrets_cannot_be_read_touches_no_node(tmp_path: Path) -> None:
    site = inventory(
        tmp_path,
        fake("one", L4),
        services=[CHAT | {"api_key": {"env": "SITE_KEY"}}],
        secrets={"hub_token": {"file": str(tmp_path / "token")}},
    )
    ended = run("apply", site, "-vvv", "--json")
    assert ended.code == 2
    assert ended.json["nodes"] == []
    assert "@fake/one: services[chat].api_key: the variable SITE_KEY is not set" in ended.err
    assert f"@fake/one: secrets.hub_token: the file {tmp_path}/token could not be read" in ended.err
    assert "sglang-survey" not in ended.err


def test_a_plan_reads_them_warns_and_shows_none_at_any_verbosity(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    token.chmod(0o644)
    site = inventory(
        tmp_path,
        fake("one", L4),
        services=[CHAT | {"api_key": {"env": "SITE_KEY"}}],
        secrets={"hub_token": {"file": str(token)}},
    )
    saved = tmp_path / "saved.json"
    words = ("plan", site, "-vvv", "--json", "--diff", "--out", saved)
    ended = run(*words, env={"SITE_KEY": KEY})
    (node,) = ended.json["nodes"]
    assert "KEY_IN_SERVER" in {caution["code"] for caution in node["cautions"]}
    assert f"chmod 600 {token}" in ended.err
    for text in (ended.out, ended.err, saved.read_text(encoding="utf-8")):
        assert KEY not in text
        assert TOKEN not in text
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_secret_in_an_inventory_is_refused_and_not_repeated(tmp_path: Path) -> None:
    site = inventory(
        tmp_path,
        fake("one", L4),
        services=[CHAT | {"api_key": KEY, "arguments": {"api-key": KEY}}],
    )
    ended = run("plan", site, "-vvv", "--json")
    assert ended.code == 2
    assert "SECRET_IN_ARGUMENTS" in ended.err
    assert KEY not in ended.err + ended.out
