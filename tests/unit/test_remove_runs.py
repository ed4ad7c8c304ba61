"""The program that takes services away, run by a real shell over a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plans import paths
from plans.deployment import TEMPLATES, render
from plans.scripts import Take

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


def node(root: Path) -> Path:
    """Make what an apply of the services a and b leaves, and programs that say what they do."""
    for name in ("a", "b"):
        deployment = root / "deployments" / name / "1"
        deployment.mkdir(parents=True)
        (root / "hub" / name).mkdir(parents=True)
        (root / "records" / name).mkdir(parents=True)
        (root / "records" / name / "1.json").write_text("{}", encoding="utf-8")
        (root / "caches" / f"build-{name}").mkdir(parents=True)
        (deployment / "record.json").write_text("{}", encoding="utf-8")
        (deployment / "launch.env").write_text(
            f'SGLANG_IMAGE="image-{name}"\nSGLANG_KERNELS="{root}/caches/build-{name}"\n'
            f'SGLANG_WEIGHTS="{root}/hub"\n',
            encoding="utf-8",
        )
        (root / "units" / f"sglang@{name}.service.d").mkdir(parents=True)
        (root / "units" / f"sglang@{name}.service.d" / paths.DROP_IN_NAME).write_text("")
    (root / "units" / "sglang@.service").write_text("", encoding="utf-8")
    bin_ = root / "bin"
    bin_.mkdir()
    for name, text in (
        ("systemctl", f'echo "$*" >> {root}/told; case $* in *MainPID*) echo 0 ;; *) echo inactive ;; esac'),
        ("docker", "exit 1"),
        ("journalctl", "exit 0"),
        ("id", "echo 999"),
        ("userdel", f'echo "userdel $*" >> {root}/told'),
    ):  # fmt: skip
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (bin_ / name).chmod(0o755)
    return bin_


def run(root: Path, shell: str, services: tuple[str, ...], take: Take) -> tuple[int, str]:
    """Run the program; return how it ended and what it printed."""
    text = render(
        "remove.sh.j2",
        services=services,
        take=take,
        root=f"{root}/deployments",
        unit_begins=paths.WHEEL_UNIT_BEGINS,
        records=f"{root}/records",
        weights=f"{root}/hub",
        caches=f"{root}/caches",
        state=f"{root}/state",
        run=f"{root}/run",
        lock=f"{root}/run/apply.lock",
        drop_ins=f"{root}/units",
        drop_in=paths.DROP_IN_NAME,
        unit_file=f"{root}/units/sglang@.service",
        devices_unit=f"{root}/units/{paths.DEVICES_UNIT_NAME}",
        environments=f"{root}/opt/environments",
        pythons=f"{root}/opt/python",
        tools=f"{root}/opt/tools",
        bundles=f"{root}/state/bundles",
        home=f"{root}/state/home",
        user=paths.USER,
        credentials=f"{root}/etc/credentials",
        keys=f"{root}/etc/credentials/services",
        hub_token=f"{root}/etc/credentials/hub-token",
        hub_token_mark=f"{root}/etc/credentials/hub-token.mark",
        watch=(TEMPLATES / "watch.sh").read_text(encoding="utf-8"),
    )
    done = subprocess.run(
        [shell, "-s"],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_what_another_service_still_uses_stays(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, out = run(tmp_path, shell, ("a",), Take(weights=True, records=True))
    assert code == 0
    assert not (tmp_path / "deployments/a").exists()
    assert not (tmp_path / "caches/build-a").exists()
    assert not (tmp_path / "records/a").exists()
    for kept in ("deployments/b/1/launch.env", "hub/b", "records/b/1.json", "caches/build-b"):
        assert (tmp_path / kept).exists(), kept
    assert (tmp_path / "units/sglang@.service").exists()
    assert f"{tmp_path}/hub (weights)" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_all_of_it_goes_where_all_is_asked_for(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, _ = run(tmp_path, shell, ("a", "b"), Take(weights=True, records=True))
    assert code == 0
    left = {path.name for path in tmp_path.iterdir()} - {"bin", "told", "units"}
    assert left == set()
    assert list((tmp_path / "units").iterdir()) == []


def wheel_node(root: Path) -> None:
    """Make the node one of the wheel runtime: a and b have an environment each, a its unit."""
    node(root)
    for name in ("a", "b"):
        (root / "opt/environments" / name).mkdir(parents=True)
        launch = root / "deployments" / name / "1" / "launch.env"
        text = launch.read_text(encoding="utf-8").replace("SGLANG_IMAGE=", "SGLANG_NOTHING=")
        text += f'SGLANG_ENVIRONMENT="{root}/opt/environments/{name}"\n'
        launch.write_text(text, encoding="utf-8")
        (root / "units" / f"sglang@{name}.service").write_text(
            paths.WHEEL_UNIT_BEGINS, encoding="utf-8"
        )
    (root / "units" / paths.DEVICES_UNIT_NAME).write_text("", encoding="utf-8")
    (root / "opt/python/3.12").mkdir(parents=True)
    (root / "opt/tools").mkdir()
    (root / "state/home").mkdir(parents=True)
    (root / "caches/uv/archive-v0").mkdir(parents=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_environments_and_pythons_are_kept_and_named(tmp_path: Path, shell: str) -> None:
    wheel_node(tmp_path)
    code, out = run(tmp_path, shell, ("a",), Take())
    assert code == 0
    assert not (tmp_path / "units/sglang@a.service").exists()
    assert (tmp_path / "units/sglang@b.service").exists()
    assert (tmp_path / "units" / paths.DEVICES_UNIT_NAME).exists()
    for name in ("a", "b"):
        assert f"{tmp_path}/opt/environments/{name} (an environment of packages)" in out
    assert f"{tmp_path}/opt/python (Pythons)" in out
    assert f"{tmp_path}/opt/tools (uv, which makes environments)" in out
    assert f"{tmp_path}/state/home (home of user sglang)" in out
    assert f"{tmp_path}/caches/uv (packages as uv keeps them for environments)" in out
    assert f"{tmp_path}/caches/build-b (compiled kernels of other services)" in out
    assert "userdel" not in (tmp_path / "told").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", SHELLS)
def test_packages_that_uv_keeps_are_not_called_kernels_where_no_service_is_left(
    tmp_path: Path, shell: str
) -> None:
    wheel_node(tmp_path)
    code, out = run(tmp_path, shell, ("a", "b"), Take())
    assert code == 0
    assert [path.name for path in (tmp_path / "caches").iterdir()] == ["uv"]
    assert f"{tmp_path}/caches/uv (packages as uv keeps them for environments)" in out
    assert "kernels" not in out


@pytest.mark.parametrize("shell", SHELLS)
def test_an_environment_that_another_service_uses_stays(tmp_path: Path, shell: str) -> None:
    wheel_node(tmp_path)
    code, out = run(tmp_path, shell, ("a",), Take(environments=True))
    assert code == 0
    assert not (tmp_path / "opt/environments/a").exists()
    assert (tmp_path / "opt/environments/b").exists()
    assert (tmp_path / "opt/python/3.12").exists()
    assert (tmp_path / "caches/uv").exists()
    assert f"{tmp_path}/opt/environments/b (an environment of packages)" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_the_last_service_takes_environments_pythons_and_user_where_asked(
    tmp_path: Path, shell: str
) -> None:
    wheel_node(tmp_path)
    code, out = run(tmp_path, shell, ("a", "b"), Take(True, True, environments=True))
    assert code == 0
    left = {path.name for path in tmp_path.iterdir()} - {"bin", "told", "units"}
    assert left == set()
    assert list((tmp_path / "units").iterdir()) == []
    assert "userdel sglang" in (tmp_path / "told").read_text(encoding="utf-8")
    assert "@kept" not in out


@pytest.mark.parametrize("shell", SHELLS)
def test_records_are_kept_and_named_where_nobody_asked_for_them(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, out = run(tmp_path, shell, ("a", "b"), Take())
    assert code == 0
    assert (tmp_path / "records/a/1.json").exists()
    assert (tmp_path / "hub/a").exists()
    assert f"{tmp_path}/records (records of deployments)" in out
    # Nothing reloads systemd before the last service is stopped: legacy containers lose GPUs by it.
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert "--no-reload --quiet disable sglang@a.service" in told.replace(
        "--quiet --no-reload", "--no-reload --quiet"
    )
    assert told.count("daemon-reload") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_what_cannot_be_taken_away_is_no_success(tmp_path: Path, shell: str) -> None:
    bin_ = node(tmp_path)
    (bin_ / "rm").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (bin_ / "rm").chmod(0o755)
    code, out = run(tmp_path, shell, ("a",), Take())
    assert code == 1
    assert "not everything could be taken away" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_unit_of_the_operators_own_stays_and_is_named(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    ours = (TEMPLATES / paths.WHEEL_UNIT_TEMPLATE).read_text(encoding="utf-8")
    theirs = (TEMPLATES / paths.UNIT_NAME).read_text(encoding="utf-8")  # systemctl edit --full
    (tmp_path / "units" / "sglang@a.service").write_text(theirs, encoding="utf-8")
    (tmp_path / "units" / "sglang@b.service").write_text(ours, encoding="utf-8")
    code, said = run(tmp_path, shell, ("a", "b"), Take())
    assert code == 0
    assert (tmp_path / "units" / "sglang@a.service").is_file()
    assert "a unit of yours" in said
    assert not (tmp_path / "units" / "sglang@b.service").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_an_earlier_remove_kept_is_taken_where_it_is_asked_for_later(
    tmp_path: Path, shell: str
) -> None:
    wheel_node(tmp_path)
    code, out = run(tmp_path, shell, ("a", "b"), Take())
    assert code == 0
    assert "an environment of packages" in out
    code, out = run(tmp_path, shell, (), Take(weights=True, records=True, environments=True))
    assert code == 0
    assert "@kept" not in out
    assert not (tmp_path / "opt").exists()
    assert not (tmp_path / "records").exists()
    assert "userdel sglang" in (tmp_path / "told").read_text(encoding="utf-8")
