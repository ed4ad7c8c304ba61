"""The harness itself: are its nodes, its GPUs, its registry and its SGLang what they say?"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from releases.wheels import read_lock
from releases.wheels.checks import problems

from .harness.lab import MODEL
from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry

SERVE = (
    f"sglang serve --model-path {MODEL} --device cpu --host 127.0.0.1 --port 30000"
    " --max-total-tokens 20000 --sleep-on-idle"
)


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 13 host with an L4, the images already pulled."""
    node = node_factory("harness", images=True)
    yield node
    node.discard()


def test_a_node_is_a_booted_host_of_its_own(node: Node) -> None:
    assert node.run("hostname").stdout == "harness\n"
    assert node.run("cat /proc/1/comm").stdout == "systemd\n"
    failed = node.run("systemctl --failed --plain --no-legend").stdout.split("\n")
    assert [line.split()[0] for line in failed if line] in ([], ["systemd-modules-load.service"])
    assert node.run("exit 7", check=False).returncode == 7


def test_files_arrive_whole_with_their_mode(node: Node) -> None:
    text = "naïve 'quotes' \"$HOME\"\n\\n"
    node.put("/etc/a place/file", text, 0o640)
    assert node.read("/etc/a place/file") == text
    assert node.run("stat -c '%a %U' '/etc/a place/file'").stdout == "640 root\n"


def test_an_l4_is_played(node: Node) -> None:
    fields = "name,driver_version,compute_cap,memory.total"
    smi = f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits"
    assert node.run(smi).stdout == "NVIDIA L4, 580.105.08, 8.9, 23034\n"
    assert "CUDA Version: 13.0" in node.run("nvidia-smi").stdout
    assert "<product_name>NVIDIA L4</product_name>" in node.run("nvidia-smi -q -x").stdout
    assert "580.105.08" in node.read("/proc/driver/nvidia/version")
    refused = node.run("nvidia-smi --query-gpu=no.such --format=csv", check=False)
    assert (refused.returncode, "not a valid field" in refused.stdout) == (2, True)


def test_docker_gives_the_gpu_to_a_container(node: Node, registry: Registry) -> None:
    image = f"tiny/http@{registry.digest('tiny/http', '1')}"
    ran = node.run(f"docker run --rm --device nvidia.com/gpu=all {image} env").stdout
    assert "PLAYED_GPU=GPU-5f0c2a1e-7b64-4d3c-9e58-1c4f6a2b8d90\n" in ran
    legacy = node.run(f"docker run --rm --gpus all {image} env", check=False)
    assert 'could not select device driver "" with capabilities: [[gpu]]' in legacy.stderr


def test_an_image_is_pulled_from_the_registry(node: Node, registry: Registry) -> None:
    digest = registry.digest("tiny/http", "1")
    for name in (f"{registry.host}/tiny/http", "tiny/http"):
        node.run(f"docker pull {name}@{digest}")
        found = json.loads(node.run(f"docker image inspect {name}@{digest}").stdout)
        assert f"{name}@{digest}" in found[0]["RepoDigests"]


def test_real_sglang_generates_and_stops(node: Node, registry: Registry) -> None:
    image = f"lmsysorg/sglang@{registry.digest('lmsysorg/sglang', 'v0.5.22')}"
    options = "--init --network host --device nvidia.com/gpu=all -v /srv/models:/srv/models:ro"
    node.run(f"docker run -d --name sglang {options} {image} {SERVE}")
    ready = "timeout 150 sh -c 'until curl -sf localhost:30000/ready; do sleep 0.5; done'"
    if node.run(ready, check=False).returncode:
        pytest.fail(node.run("docker logs --tail 40 sglang 2>&1").stdout)
    body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 8}})
    post = "curl -sf -H content-type:application/json -d @- localhost:30000/generate"
    answer = json.loads(node.run(post, text=body).stdout)
    assert answer["meta_info"]["completion_tokens"] == 8
    version = json.loads(node.run("curl -sf localhost:30000/server_info").stdout)["version"]
    assert version == "0.5.22"
    node.run("docker stop -t 60 sglang")
    state = node.run("docker inspect -f '{{.State.ExitCode}}' sglang").stdout
    assert state == "0\n"
    node.run("docker rm sglang")


def test_a_reboot_keeps_the_disk(node: Node) -> None:
    images = sorted(node.run("docker images -q").stdout.split())
    node.put("/var/lib/kept", "kept")
    node.run("mkdir /run/forgotten")
    node.reboot()
    assert node.read("/var/lib/kept") == "kept"
    assert node.run("test -e /run/forgotten", check=False).returncode == 1
    assert sorted(node.run("docker images -q").stdout.split()) == images
    assert "NVIDIA L4" in node.run("nvidia-smi -L").stdout


def test_a_power_cut_ends_everything_and_keeps_the_disk(node: Node) -> None:
    node.put("/var/lib/kept", "still")
    node.cut_power()
    assert not node.booted
    node.boot()
    assert node.read("/var/lib/kept") == "still"


def test_an_older_host_boots_beside_it(node: Node, node_factory: Callable[..., Node]) -> None:
    older = node_factory("older", tree_name="bookworm", gpus=None)
    try:
        assert older.run("systemctl --version").stdout.startswith("systemd 252")
        assert older.run("docker version -f '{{.Server.Version}}'").stdout.startswith("20.10")
        assert older.run("nvidia-smi", check=False).returncode == 127
        older.run(f"timeout 5 bash -c '</dev/tcp/{node.address}/22'")
        for each in (node, older):
            each.run("systemd-run --quiet --unit=same sleep 600")
        for each in (node, older):  # neither systemd sees the processes of the other
            procs = each.read("/sys/fs/cgroup/system.slice/same.service/cgroup.procs")
            assert procs.split() == each.run("pgrep -x sleep").stdout.split()
    finally:
        older.discard()


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_the_mirror_serves_the_files_that_its_pages_name(mirror: Mirror) -> None:
    pages = [f"{mirror.keys['index']}/sglang/", f"{mirror.keys['index']}/torchvision/"]
    pages.append(f"{mirror.keys['flashinfer']}/cu130/flashinfer-jit-cache-sm90a/")
    for page in pages:
        links = re.findall(r'href="([^#]*)#sha256=([0-9a-f]{64})"', fetched(page).decode())
        assert links, page
        for link, digest in links:
            content = fetched(f"{page}{link}")
            assert hashlib.sha256(content).hexdigest() == digest
    (build,) = json.loads(fetched(mirror.keys["python_downloads"])).values()
    assert hashlib.sha256(fetched(build["url"])).hexdigest() == build["sha256"]


def test_the_locks_for_tests_are_whole(mirror: Mirror) -> None:
    for name, release in (("0.5.22", "0.5.22"), ("0.5.23", "0.5.23"), ("compile", "0.5.23")):
        lock = read_lock(mirror.locks[name].read_text(encoding="utf-8"))
        assert (lock.release, lock.device) == (release, "cpu")
        assert problems(lock, own=True) == []
        for package in lock.packages:
            file = mirror.root / "files" / package.file
            assert file.stat().st_size == package.size


def test_a_bare_host_gets_a_compiler_from_the_mirror(
    node_factory: Callable[..., Node], mirror: Mirror
) -> None:
    bare = node_factory("bare-harness", tree_name="fresh")
    try:
        assert mirror.url.startswith("http://")
        assert bare.run("command -v docker || command -v g++", check=False).returncode == 1
        bare.run("apt-get -qq update && apt-get -qq -y --no-install-recommends install g++")
        bare.put("/root/a.cc", "int main() { return 0; }\n")
        linked = "g++ -o /root/a /root/a.cc -Wl,--no-as-needed"
        # As on a host with a driver and no toolkit: the library is there, its name for linking not.
        assert "-lcuda" in bare.run(f"{linked} -lcuda", check=False).stderr
        bare.run(f"{linked} -l:libcuda.so.1 && ldd /root/a | grep libcuda.so.1 && /root/a")
    finally:
        bare.discard()
