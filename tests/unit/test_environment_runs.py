"""The programs that make an environment, run by real shells over a directory of their own.

uv stands in for what it cannot fetch here: it makes an environment of a few empty packages and a
CUDA tree, or fails as uv did. All else is real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plans import paths
from plans.mirrors import Mirrors
from plans.wheel import scripts
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.failures import failure_in
from plans.wheel.tools import uv_path

SHELLS = [shell for shell in (["dash"], ["busybox", "ash"], ["bash"]) if shutil.which(shell[0])]
KEY = "0123456789abcdef"
PLANNED = PlannedEnvironment(
    key=KEY,
    release="0.5.23",
    requirements="six==1.17.0 --hash=sha256:" + "0" * 64 + "\n",
    size=11050,
    python="3.12",
    cuda_home=None,
    packages=(),
    mirrors=Mirrors(),
    build=True,
    why="not on the node",
    cuda="13.0",
    count=2,
    python_packages=("python3.12", "python3.12-dev"),
)

PYTHON = """#!/bin/sh
exec {real} -I -c '
import re, runpy, sys, sysconfig
sysconfig.get_paths = lambda *given: {{"include": "{root}/include"}}
sys.executable = "{root}/python312"
sys.argv = sys.argv[2:]
if sys.argv[0] == "-c":
    exec(sys.argv[1])
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
' "$@"
"""
"""A Python whose headers are where the test has them: a build of one cannot be fetched here."""

UV = """#!/bin/sh
echo "$*" >> {root}/called
env | grep -E '^(UV_|PYTHONPATH)' | sort > {root}/environment
case $1 in
python)
    [ ! -e {root}/cut ] || kill -TERM $$
    [ ! -e {root}/no-network ] || {{ echo 'error: x'; echo '  cause: no network'; exit 1; }}
    mkdir -p {root}/opt/python/cpython-3.12.9-linux-x86_64-gnu/bin
    cp {root}/python312 {root}/opt/python/cpython-3.12.9-linux-x86_64-gnu/bin/python3.12
    ;;
venv)
    env | grep UV_PYTHON_INSTALL_DIR > {root}/venv-environment
    for new in "$@"; do :; done
    mkdir -p "$new/bin" "$new/lib/python3.12/site-packages"
    cp {root}/python312 "$new/bin/python3"
    ;;
pip)
    new={root}/opt/environments/{key}.new
    site=$new/lib/python3.12/site-packages
    cmp "$new/requirements.txt" {root}/wanted || exit 9
    mkdir "$site/six-1.17.0.dist-info"
    [ ! -e {root}/edits ] || : > "$new/requirements.txt"
    [ ! -e {root}/fails ] || {{ cat {root}/fails; exit 1; }}
    [ ! -e {root}/dies ] || kill -KILL $PPID
    cuda=$site/nvidia/cu13
    mkdir -p "$cuda/bin" "$cuda/nvvm/bin" "$cuda/lib" "$cuda/include"
    touch "$cuda/lib/libcudart.so.13" "$cuda/nvvm/bin/cicc" "$cuda/include/cuda_runtime.h"
    printf '#!/bin/sh\\necho "Cuda compilation tools, release %s, V0"\\n' "$(cat {root}/release)" > "$cuda/bin/nvcc"
    chmod 755 "$cuda/bin/nvcc"
    echo 'Installed 1 package in 1ms'
    ;;
esac
"""


class Node:
    """A directory that stands for a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("opt/environments", "opt/tools", "include", "bin"):
            (root / name).mkdir(parents=True)
        (root / "include/Python.h").touch()
        (root / "release").write_text("13.0")
        (root / "wanted").write_text(PLANNED.requirements)
        self.program("python312", PYTHON.format(real=sys.executable, root=root))
        self.program(uv_path().replace("/opt/sglang", "opt"), UV.format(root=root, key=KEY))

    def program(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(0o755)

    def run(self, text: str, shell: list[str] = SHELLS[0]) -> subprocess.CompletedProcess[str]:
        """Run a program as the apply lock's own shell does."""
        here = text.replace("/opt/sglang", f"{self.root}/opt").replace(
            "/var/cache/sglang", f"{self.root}/cache"
        )
        here = here.replace("/usr/local/bin/python", f"{self.root}/bin/python")
        here = here.replace("/usr/bin/python", f"{self.root}/bin/python")
        refuse = 'refuse() {\n    echo "@refused $1 $2"\n    exit 75\n}\n'
        return subprocess.run(
            [*shell, "-s"],
            input=f"{refuse}(\n{here}\n)\nexit $?\n",
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": f"{self.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": "/x"},
        )

    def build(self, shell: list[str] = SHELLS[0]) -> subprocess.CompletedProcess[str]:
        return self.run(scripts.build(PLANNED), shell)

    @property
    def there(self) -> list[str]:
        return sorted(path.name for path in (self.root / "opt/environments").iterdir())

    @property
    def cuda(self) -> Path:
        return self.root / f"opt/environments/{KEY}/lib/python3.12/site-packages/nvidia/cu13"


@pytest.fixture
def node() -> Iterator[Node]:
    # Not below pytest's own directories: those are closed to others, which is looked at.
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    root.chmod(0o755)
    yield Node(root)
    shutil.rmtree(root)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_it_is_built_beside_its_place_marked_last_and_whole(node: Node, shell: list[str]) -> None:
    done = node.build(shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert node.there == [KEY]
    assert done.stdout.splitlines()[-1].endswith(
        "is whole: 1 packages, Python " + sys.version.split()[0]
    )
    place = node.root / "opt/environments" / KEY
    mark = json.loads((place / "environment.json").read_text())
    assert mark["key"] == KEY
    assert mark["include"] == f"{node.root}/include"
    assert mark["parts"] == ["bin/python3", "Python.h", "cu13/bin/nvcc", "cu13/nvvm/bin/cicc",
                             "cu13/lib64", "cu13/lib64/libcudart.so"]  # fmt: skip
    assert mark["site_time"] == int((place / mark["site_packages"]).stat().st_mtime)
    assert (place / "packages.txt").read_text() == "six-1.17.0.dist-info\n"
    assert os.readlink(node.cuda / "lib64") == "lib"
    assert os.readlink(node.cuda / "lib/libcudart.so") == "libcudart.so.13"
    assert not (place / "finish.py").exists()


def test_uv_is_called_with_hashes_and_without_what_the_login_has(node: Node) -> None:
    assert node.build().returncode == 0
    calls = (node.root / "called").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["python", "venv", "pip"]
    assert "--no-deps --require-hashes --only-binary :all:" in calls[2]
    variables = (node.root / "environment").read_text()
    assert "UV_NO_CONFIG=1" in variables
    # Else uv links the environment to the newest patch of a Python's minor version.
    assert (node.root / "venv-environment").read_text() == "UV_PYTHON_INSTALL_DIR=/nonexistent\n"
    assert "PYTHONPATH" not in variables


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_one_that_is_not_whole_is_replaced_and_what_a_cut_run_left_is_gone(
    node: Node, shell: list[str]
) -> None:
    assert node.build(shell).returncode == 0
    place = node.root / "opt/environments" / KEY
    (place / "lib/python3.12/site-packages/edited").touch()
    (node.root / f"opt/environments/{KEY}.new/half").mkdir(parents=True)
    (node.root / f"opt/environments/{KEY}.old").mkdir()
    done = node.build(shell)
    assert done.returncode == 0, done.stdout
    assert node.there == [KEY]
    assert not (place / "lib/python3.12/site-packages/edited").exists()
    assert not (place / "half").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_killed_while_uv_installs_it_leaves_the_old_one_and_the_next_run_ends_whole(
    node: Node, shell: list[str]
) -> None:
    assert node.build(shell).returncode == 0
    (node.root / "opt/environments" / KEY / "old").touch()
    (node.root / "dies").touch()
    assert node.build(shell).returncode != 0
    assert (node.root / "opt/environments" / KEY / "old").exists()
    assert node.there == [KEY, f"{KEY}.new"]
    assert not (node.root / f"opt/environments/{KEY}.new/environment.json").exists()
    (node.root / "dies").unlink()
    assert node.build(shell).returncode == 0
    assert node.there == [KEY]
    assert not (node.root / "opt/environments" / KEY / "old").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_requirements_that_a_full_disk_cut_short_are_not_installed(
    node: Node, shell: list[str]
) -> None:
    write = "base64: write error: No space left on device"
    text = f"base64() {{\n    echo '{write}' >&2\n    return 1\n}}\n{scripts.build(PLANNED)}"
    done = node.run(text, shell)
    assert done.returncode == 1
    failure = failure_in(done.stdout.splitlines())
    assert failure is not None
    assert failure.code == "DISK_FULL"
    assert node.there == []
    assert "pip install" not in (node.root / "called").read_text()


def test_an_environment_of_other_requirements_or_of_fewer_packages_is_not_put_in_place(
    node: Node,
) -> None:
    (node.root / "edits").touch()
    done = node.build()
    assert done.returncode == 75
    assert "ENVIRONMENT_NOT_WHOLE its requirements.txt is not the lock that was sent" in done.stdout
    (node.root / "edits").unlink()
    done = node.run(scripts.build(replace(PLANNED, least=2)))
    assert done.returncode == 75
    assert "ENVIRONMENT_NOT_WHOLE it has 1 packages of 2" in done.stdout
    assert node.there == []


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_an_old_one_whose_place_a_cut_left_empty_is_put_back_before_a_build(
    node: Node, shell: list[str]
) -> None:
    place = node.root / "opt/environments" / KEY
    old = place.with_name(f"{KEY}.old")
    old.mkdir()
    (old / "old").touch()
    (node.root / "dies").touch()
    assert node.build(shell).returncode != 0
    assert (place / "old").exists()
    place.rename(old)
    (node.root / "bin/chown").symlink_to("/bin/true")
    done = installing(node, scripts.prepare(replace(WANTS, packages=(), taken_away=(KEY,))), shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is put back" in done.stdout
    assert (place / "old").exists()
    assert not old.exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_what_uv_says_reaches_who_judges_it_and_nothing_is_put_in_place(
    node: Node, shell: list[str]
) -> None:
    (node.root / "fails").write_text("error: x\n  cause: Hash mismatch for `six==1.17.0`\n")
    done = node.build(shell)
    assert done.returncode == 1
    failure = failure_in(done.stdout.splitlines())
    assert failure is not None
    assert failure.code == "PACKAGE_HASH"
    assert node.there == []
    assert (node.root / "called").read_text().count("pip install") == 1


def test_a_compiler_of_another_release_is_not_put_in_place(node: Node) -> None:
    (node.root / "release").write_text("13.5")
    done = node.build()
    assert done.returncode == 75
    assert (
        "@refused ENVIRONMENT_NOT_WHOLE its nvcc is of CUDA 13.5, the lock of CUDA 13.0"
        in done.stdout
    )
    assert node.there == []


def test_a_python_that_the_service_s_user_cannot_read_is_not_put_in_place(node: Node) -> None:
    (node.root / "include").chmod(0o700)
    done = node.build()
    assert done.returncode == 75
    assert "may not be read by user sglang" in done.stdout
    assert node.there == []


def test_where_uv_fetches_no_python_the_distribution_s_is_taken(node: Node) -> None:
    (node.root / "no-network").touch()
    node.program("bin/python3.12", PYTHON.format(real=sys.executable, root=node.root))
    done = node.build()
    assert done.returncode == 0, done.stdout
    assert "uv could not fetch Python 3.12 (no network)" in done.stdout
    assert f"Python: {node.root}/bin/python3.12" in done.stdout


def test_without_any_python_with_headers_both_reasons_are_said(node: Node) -> None:
    (node.root / "no-network").touch()
    node.program(
        "bin/apt-get", "#!/bin/sh\necho 'E: Unable to locate package python3.12'\nexit 100\n"
    )
    done = node.build()
    assert done.returncode == 75
    (refused,) = [line for line in done.stdout.splitlines() if line.startswith("@refused")]
    assert refused.startswith("@refused PYTHON_MISSING uv could not fetch Python 3.12 (no network)")
    assert "Unable to locate package python3.12" in refused
    assert node.there == []


def test_from_a_bundle_no_package_of_the_distribution_is_fetched(node: Node) -> None:
    (node.root / "no-network").touch()
    node.program("bin/apt-get", f"#!/bin/sh\ntouch {node.root}/asked\nexit 100\n")
    done = node.run(scripts.build(PLANNED, f"{node.root}/wheels"))
    assert done.returncode == 75, done.stdout
    assert "@refused PYTHON_MISSING" in done.stdout
    assert not (node.root / "asked").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_cut_while_a_python_is_fetched_it_ends_and_begins_nothing_else(
    node: Node, shell: list[str]
) -> None:
    (node.root / "cut").touch()
    node.program("bin/apt-get", f"#!/bin/sh\ntouch {node.root}/asked\nexit 100\n")
    done = node.build(shell)
    assert done.returncode == 143, done.stdout
    assert not (node.root / "asked").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_links_are_made_again_and_nothing_else_is_touched(node: Node, shell: list[str]) -> None:
    assert node.build(shell).returncode == 0
    mark = (node.root / "opt/environments" / KEY / "environment.json").read_text()
    (node.cuda / "lib64").unlink()
    (node.cuda / "lib/libcudart.so").unlink()
    (node.cuda / "lib/libcudart.so").symlink_to("gone")
    done = node.run(scripts.repair(PLANNED), shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (node.cuda / "lib64/libcudart.so").exists()
    assert (node.root / "opt/environments" / KEY / "environment.json").read_text() == mark


def test_a_host_without_a_libcuda_to_link_with_gets_a_stub(node: Node) -> None:
    (node.root / "libcuda.so.1").touch()
    node.program(
        "bin/ldconfig",
        f"#!/bin/sh\nprintf '\\tlibcuda.so.1 (libc6,x86-64) => {node.root}/libcuda.so.1\\n'\n",
    )
    text = scripts.build(PLANNED).replace("/sbin/ldconfig", "ldconfig")
    assert node.run(text).returncode == 0
    assert os.readlink(node.cuda / "lib/stubs/libcuda.so") == f"{node.root}/libcuda.so.1"


# --- packages of the distribution

WANTS = replace(PLANNED, build=False, packages=("g++", "libnuma1"))


def installing(
    node: Node, text: str = scripts.prepare(WANTS), shell: list[str] = SHELLS[0]
) -> subprocess.CompletedProcess[str]:
    state = str(node.root / "state")
    return node.run(f"ours() {{\n    :\n}}\n{text}".replace("/var/lib/sglang", state).replace(
        "ours /opt", ": /opt"
    ))  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
@pytest.mark.parametrize("left", [None, 0o700, 0o755])
def test_a_home_that_a_cut_run_left_to_root_is_given_away(
    node: Node, shell: list[str], left: int | None
) -> None:
    home = node.root / "state" / Path(paths.HOME).name
    if left is not None:
        home.mkdir(parents=True)
        home.chmod(left)
    node.program("bin/chown", f'#!/bin/sh\necho "$*" >> {node.root}/given\n')
    done = installing(node, scripts.prepare(replace(WANTS, packages=())), shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (node.root / "given").read_text() == f"-h sglang: {home}\n"
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_the_user_s_is_left_alone(node: Node) -> None:
    node.program("bin/chown", f"#!/bin/sh\ntouch {node.root}/given\n")
    node.program("bin/stat", "#!/bin/sh\necho 'sglang 700'\n")
    assert installing(node, scripts.prepare(replace(WANTS, packages=()))).returncode == 0
    assert not (node.root / "given").exists()


@pytest.mark.parametrize("refreshed", [False, True])
def test_lists_are_fetched_only_where_those_that_are_there_do_not_do(
    node: Node, refreshed: bool
) -> None:
    node.program(
        "bin/apt-get",
        f'#!/bin/sh\necho "$*" >> {node.root}/apt\n'
        f"env | grep DEBIAN_FRONTEND >> {node.root}/apt\n"
        f"case $* in *update*) touch {node.root}/lists; exit 0;; esac\n"
        f"[ {int(refreshed)} = 1 ] || [ -e {node.root}/lists ] || {{ echo 'E: none'; exit 100; }}\n",
    )
    node.program("bin/chown", "#!/bin/sh\nexit 0\n")
    done = installing(node)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = (node.root / "apt").read_text()
    assert "DPkg::Lock::Timeout=600" in calls
    assert "--no-install-recommends g++ libnuma1" in calls
    assert "DEBIAN_FRONTEND=noninteractive" in calls
    assert ("update" in calls) is not refreshed


def test_what_was_killed_within_dpkg_goes_on_and_is_installed_whole(node: Node) -> None:
    updates = node.root / "updates"
    updates.mkdir()
    (updates / "0003").touch()
    broken = node.root / "broken"
    broken.touch()
    node.program("bin/dpkg", f'#!/bin/sh\necho "dpkg $*" >> {node.root}/apt\nrm {updates}/0003\n')
    node.program(
        "bin/apt-get",
        f'#!/bin/sh\necho "$*" >> {node.root}/apt\n'
        f"case $* in *update*) exit 0;; *--fix-broken*) rm {broken};; esac\n"
        f"[ ! -e {broken} ] && [ ! -e {updates}/0003 ] || {{ echo 'E: interrupted'; exit 100; }}\n",
    )
    node.program("bin/chown", "#!/bin/sh\nexit 0\n")
    text = scripts.prepare(WANTS).replace("/var/lib/dpkg/updates", str(updates))
    done = installing(node, text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dpkg was interrupted before" in done.stdout
    assert "half-installed" in done.stdout
    calls = (node.root / "apt").read_text()
    assert "dpkg --force-confold --configure -a" in calls
    assert "--fix-broken --no-remove install" in calls


def test_who_holds_the_package_manager_s_lock_is_said_and_waited_for(node: Node) -> None:
    lock = node.root / "lock-frontend"
    lock.touch()
    node.program("bin/apt-get", "#!/bin/sh\nexit 0\n")
    node.program("bin/chown", "#!/bin/sh\nexit 0\n")
    holds = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(2.5)"
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(lock)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        text = scripts.prepare(WANTS).replace("/var/lib/dpkg/lock-frontend", str(lock))
        done = installing(node, text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"(pid {holder.pid}) holds {lock}" in done.stdout
    assert "the package manager is free after" in done.stdout


def test_packages_that_cannot_be_installed_are_refused_with_the_last_word(node: Node) -> None:
    node.program("bin/apt-get", "#!/bin/sh\necho 'E: Unable to locate package g++'\nexit 100\n")
    node.program("bin/chown", "#!/bin/sh\nexit 0\n")
    done = installing(node)
    assert done.returncode == 75
    assert (
        "@refused PACKAGES_NOT_INSTALLED apt-get could not install g++, libnuma1: E: Unable to locate"
        in done.stdout
    )
