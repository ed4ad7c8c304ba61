"""Ansible inventories as TARGET: what becomes of their groups and variables."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli import ansible
from cli.ansible import AnsibleError, from_hosts
from cli.inventory import TargetError, limited, load
from locks.where import lock_path
from tests.skipping import skip


@pytest.fixture
def real() -> None:
    """ansible-core, where it is installed."""
    if find_spec("ansible") is None:
        skip("ansible-core is not installed: scripts/environment dev")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An inventory as people keep it: an INI file, group_vars and host_vars beside it."""
    (tmp_path / "hosts.ini").write_text(
        "[h100]\n"
        'gpu-1 ansible_host="{{ inventory_hostname }}.example" rack=r1\n'
        "gpu-2 ansible_host=10.0.0.6 ansible_port=2222\n"
        "\n[l4]\ngpu-3\n"
        "\n[gpu:children]\nh100\nl4\n"
        "\n[gpu:vars]\nansible_user=maria\nansible_become=no\n"
        "ansible_ssh_common_args='-o ControlPersist=60s'\n"
        "\n[elsewhere]\nhere ansible_connection=local\n",
        encoding="utf-8",
    )
    for name, text in {
        "group_vars/all.yml": "common_model: Qwen/Qwen3-8B\nunused: '{{ nowhere }}'\n",
        "group_vars/gpu.yml": (
            "sglang:\n  services:\n    - name: chat\n      model: '{{ common_model }}'\n"
            "      port: 30000\n"
        ),
        "host_vars/gpu-2.yml": (
            "ansible_become: true\nsudo_password: {env: GPU_SUDO}\n"
            "ansible_ssh_private_key_file: ~/.ssh/gpu\n"
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "hosts.ini"


@pytest.mark.usefixtures("real")
def test_a_real_one_gives_hosts_groups_and_variables(site: Path) -> None:
    inventory = load(f"@ansible/{site}")
    assert [host.name for host in inventory] == ["@local", "gpu-1", "gpu-2", "gpu-3"]
    first, second = inventory.get_host("gpu-1"), inventory.get_host("gpu-2")
    assert first.data.get("ssh_hostname") == "gpu-1.example"
    assert first.data.get("ssh_user") == "maria"
    assert first.data.get("_sudo") is False
    assert first.data.get("rack") == "r1"
    assert first.data.get("sglang") == {
        "services": [{"name": "chat", "model": "Qwen/Qwen3-8B", "port": 30000}]
    }
    assert second.data.get("_sudo") is True
    assert second.data.get("ssh_port") == 2222
    assert type(second.data.get("ssh_port")) is int
    assert second.data.get("ssh_key") == "~/.ssh/gpu"
    assert second.data.get("sudo_password") == {"env": "GPU_SUDO"}
    assert [host.name for host in limited(inventory, ["h100"]) or []] == ["gpu-1", "gpu-2"]
    assert [host.name for host in limited(inventory, ["gpu"], ["l4"]) or []] == ["gpu-1", "gpu-2"]


@pytest.mark.usefixtures("real")
def test_a_variable_that_cannot_be_filled_in_is_told_with_its_host(site: Path) -> None:
    (site.parent / "host_vars/gpu-3.yml").write_text("sglang: '{{ nowhere }}'\n", encoding="utf-8")
    with pytest.raises(TargetError, match=r"gpu-3: sglang: .*nowhere") as told:
        load(f"@ansible/{site}")
    assert "gpu-1:" not in str(told.value)


@pytest.mark.usefixtures("real")
def test_what_is_no_inventory_is_told_in_ansible_s_words(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[gpu\n", encoding="utf-8")
    with pytest.raises(TargetError, match="Ansible finds no host in it"):
        load(f"@ansible/{tmp_path}/hosts")


def test_its_lock_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "prod").mkdir()
    (tmp_path / "prod/hosts").write_text("gpu-1\n", encoding="utf-8")
    assert lock_path(f"@ansible/{tmp_path}/prod") == tmp_path / "sglang.lock"
    assert lock_path(f"@ansible/{tmp_path}/prod/hosts") == tmp_path / "prod/sglang.lock"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="there is no such inventory"):
        load(f"@ansible/{tmp_path}/hosts")


def test_without_ansible_the_extra_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"pip install 'pyinfra-sglang\[ansible\]'"):
        load(f"@ansible/{site}")


def host(**variables: Any) -> list[dict[str, Any]]:
    """Return one host as the reader gives it."""
    return [{"name": "gpu-1", "groups": ["gpu"], "vars": variables, "problems": {}}]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"ansible_become_password": "x"}, "--ask-sudo-password"),
        ({"ansible_password": "x"}, "use a key or an agent"),
        ({"ansible_connection": "docker"}, "reached by ssh or local"),
        ({"ansible_become": "yes", "ansible_become_method": "su"}, "by sudo"),
        ({"ansible_ssh_common_args": "-o ProxyCommand='ssh -W %h:%p jump'"}, "~/.ssh/config"),
        ({"ansible_ssh_extra_args": "-J jump"}, "~/.ssh/config"),
    ],
)
def test_what_could_not_be_kept_is_refused(variables: dict[str, Any], says: str) -> None:
    with pytest.raises(AnsibleError) as told:
        from_hosts("hosts", host(**variables))
    assert says in str(told.value)
    assert "gpu-1" in str(told.value)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(AnsibleError) as told:
        from_hosts("hosts", host(ansible_become_pass="battery"))
    assert "battery" not in str(told.value)


def test_manners_of_the_connection_are_no_reason_to_refuse() -> None:
    groups = from_hosts(
        "hosts",
        host(ansible_ssh_common_args="-C -o ControlMaster=auto", ansible_become_method="su",
             ansible_become="False", ansible_facts={}, inventory_dir="/x"),
    )  # fmt: skip
    assert groups == {"all": ([("gpu-1", {"_sudo": False})], {}), "gpu": (["gpu-1"], {})}
