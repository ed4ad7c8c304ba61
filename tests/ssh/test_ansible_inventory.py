"""A real Ansible inventory, over real sshd: one box that exists already for Ansible's sake."""

from __future__ import annotations

from importlib.util import find_spec

from tests.skipping import skip

from .machine import PASSWORD, Machine, Person


def test_its_hosts_are_reached_and_its_variables_are_our_wishes(
    machine: Machine, person: Person
) -> None:
    if find_spec("ansible") is None:
        skip("ansible-core is not installed: scripts/environment dev")
    sshd = machine.sshd()
    person.known_hosts.write_text(sshd.known, encoding="utf-8")
    (person.home / "hosts.yml").write_text(
        "gpu:\n"
        "  hosts:\n"
        f"    gpu-1: {{ansible_host: 127.0.0.1, ansible_port: '{sshd.port}'}}\n"
        "  vars:\n"
        "    ansible_user: maria\n"
        f"    ansible_ssh_private_key_file: {machine.folder}/key\n"
        "    ansible_become: 'yes'\n"
        "    sudo_password: {env: GPU_SUDO}\n",
        encoding="utf-8",
    )
    (person.home / "group_vars").mkdir()
    (person.home / "group_vars/gpu.yml").write_text(
        "sglang:\n  services:\n    - {name: chat, model: /srv/models/qwen, port: 31234}\n",
        encoding="utf-8",
    )
    person.environment["GPU_SUDO"] = PASSWORD
    ended = person.tool("plan", f"@ansible/{person.home}/hosts.yml", "--limit", "gpu", "--json")
    assert ended.code == 3  # this machine has no GPU
    (node,) = ended.json["nodes"]
    assert node["node"] == "gpu-1"
    codes = {one["code"] for one in node["refusals"]}
    assert "NEED_ROOT" not in codes, "it became root with the password"
    assert "/srv/models/qwen" in ended.out
    assert PASSWORD not in ended.out + ended.err
