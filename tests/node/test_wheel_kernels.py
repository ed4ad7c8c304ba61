"""Kernels of FlashInfer and SGLang compile, link and load with nothing but the lock's wheels.

And of the four pieces that a plain install lacks, each is taken away: the canary names it in one
sentence while the service goes on, and an apply mends it. The compiler, the packages and the unit
are real; played are the GPUs (no compiler needs one) and the driver's library.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from deploys.node import Options, plan_of, request_for
from deploys.wheel_locks import with_own_locks
from facts.parsing import parse_survey
from facts.request import SurveyRequest
from plans.canary import Canary, document_of, last
from plans.plan import ServicePlan
from plans.wheel.canary import expected_wheel, judge_wheel
from plans.wheel.canary_program import canary, canary_result
from plans.wishes import read_wishes

from .harness.lab import MODEL, Lab
from .harness.machine import Node
from .site import ROOT, Site, wheel_service

UNIT = "sglang@chat.service"
DEPLOYMENTS = "/var/lib/sglang/deployments/chat"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 12 host with an L4's driver, and without compiler, headers and Docker."""
    node = node_factory("kernels", tree_name="fresh")
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service on the CPU device, whose lock has a compiler of CUDA."""
    data = {
        "services": [wheel_service(runtime="wheel", release="0.5.23")],
        "wheel_lock": str(lab.mirror.locks["compile"]),
        "mirrors": lab.mirror.keys,
    }
    return Site(tmp_path_factory.mktemp("site"), [node], data)


def planned(site: Site, node: Node) -> ServicePlan:
    """Return what the toolkit plans for the service as the node is now."""
    wishes = with_own_locks(read_wishes(site.data, node.name), node.name, None)
    request: SurveyRequest = request_for(wishes)
    program = (ROOT / "facts/survey.sh").read_text(encoding="utf-8")
    words = " ".join(map(shlex.quote, request.words()))
    said = node.run(f"sh -s -- {words}", text=program).stdout
    plan = plan_of(parse_survey(said.split("\n"), node.name), wishes, Options(lock=None))
    (one,) = plan.services
    assert one.launch is not None, plan.refusals
    return one


def tried(node: Node, one: ServicePlan, *capabilities: str) -> tuple[Canary, dict[str, Any]]:
    """Try the environment as an apply does, for these GPUs; return the verdict and the document."""
    wanted = replace(expected_wheel(one), compiles_for=capabilities)
    shown = node.run("sh -s", text=canary(one, wanted)).stdout
    assert "looking for compilers" in shown
    assert "@canary" not in shown
    said = node.run("sh -s", text=canary_result(one)).stdout.splitlines()
    print("\n".join(said))
    return judge_wheel(said, wanted), dict(document_of(last(said, "@canary ")) or {})


STEPS = (
    "loading torch and SGLang",
    "loading flashinfer",
    "building Triton's helper",
    "compiling a kernel of FlashInfer for 8.9",
    "compiling a kernel of SGLang for 8.9",
)
"""What an apply's canary does on a node with an L4."""


def kept(node: Node) -> dict[str, Any]:
    """Return what the last apply's canary found."""
    found: dict[str, Any] = json.loads(node.read(f"{DEPLOYMENTS}/current/canary.json"))
    return found


def test_an_apply_on_a_fresh_node_compiles_links_and_loads_kernels_for_its_gpu(
    site: Site, node: Node
) -> None:
    ran = site.tool("apply", timeout=900)
    assert ran.code == 0
    assert "compiling a kernel of FlashInfer for 8.9" in ran.out + ran.err
    found = kept(node)
    assert found["compiled_for"] == ["8.9"]
    assert {one["name"]: one["ended"] for one in found["steps"]} == dict.fromkeys(STEPS, 0)
    assert [one["code_for"] for one in found["steps"][3:]] == [["8.9"], ["8.9"]]
    assert found["objects"]["count"] > 5
    # As its user, closed as its unit is, and nothing of it is left.
    assert found["uid"] == int(node.run("id -u sglang").stdout)
    assert found["no_new_privileges"] is True
    assert node.run("ls -A /var/cache/sglang | grep canary", check=False).stdout == ""
    assert node.run("systemctl list-units --all --no-legend 'sglang-canary*'").stdout == ""


def test_both_compile_for_hopper_too(site: Site, node: Node) -> None:
    verdict, found = tried(node, planned(site, node), "9.0")
    assert verdict == Canary()
    kernels = found["steps"][3:]
    assert [one["code_for"] for one in kernels] == [["9.0"], ["9.0"]]
    # The target with all that Hopper has: each keeps its kernels by its name.
    assert all("90a/" in one["loaded"] for one in kernels)


def environment(node: Node) -> str:
    """Return the directory of the only environment."""
    (name,) = node.run("ls /opt/sglang/environments").stdout.split()
    return f"/opt/sglang/environments/{name}"


ASIDE = ("mv {file} {file}.aside", "mv -f {file}.aside {file}")

PIECES = {
    "PYTHON_HEADERS_MISSING": ("{include}/Python.h", *ASIDE),
    "NVCC_MISSING": ("{cuda}/bin/nvcc", *ASIDE),
    # As pip leaves it where it takes headers of a newer release: with its record of them.
    "CUDA_COMPILER_MISMATCH": (
        "{cuda}/include/cuda_runtime_api.h",
        "mv {file} {file}.aside && sed 's/define CUDART_VERSION .*/define CUDART_VERSION 13050/' "
        "< {file}.aside > {file} && cd {site} && mv nvidia_cuda_runtime-13.0.96.dist-info "
        "nvidia_cuda_runtime-13.5.50.dist-info",
        "mv -f {file}.aside {file} && cd {site} && mv nvidia_cuda_runtime-13.5.50.dist-info "
        "nvidia_cuda_runtime-13.0.96.dist-info",
    ),
    "CUDART_NOT_LINKED": ("{cuda}/lib/libcudart.so", *ASIDE),
}
"""What a plain install of SGLang lacks or mixes: the file, how it is broken, how it is put back."""

SENTENCES = {
    "PYTHON_HEADERS_MISSING": "/Python.h is not there",
    "NVCC_MISSING": "/nvidia/cu13/bin/nvcc is not there",
    "CUDA_COMPILER_MISMATCH": "nvcc is of CUDA 13.0 and the headers are of CUDA 13.5",
    "CUDART_NOT_LINKED": "the linker says: cannot find -lcudart",
}
"""What the canary says of each."""


def broken(node: Node, code: str) -> str:
    """Break a piece; return the command that puts it back."""
    home = environment(node)
    site = f"{home}/lib/python3.11/site-packages"
    asks = "import sysconfig; print(sysconfig.get_path('include'))"
    include = node.run(f'{home}/bin/python3 -c "{asks}"').stdout.strip()
    piece, breaks, mends = PIECES[code]
    file = piece.format(cuda=f"{site}/nvidia/cu13", include=include)
    node.run(breaks.format(file=file, site=site))
    return mends.format(file=file, site=site)


@pytest.mark.parametrize("code", PIECES)
def test_a_piece_that_is_broken_is_named_while_the_service_goes_on(
    site: Site, node: Node, code: str
) -> None:
    one = planned(site, node)
    serving = f"systemctl show -p ActiveState,MainPID,InvocationID {UNIT}"
    before = node.run(serving).stdout
    assert "ActiveState=active" in before
    mend = broken(node, code)
    try:
        verdict, _ = tried(node, one, "8.9")
        assert [refusal.code for refusal in verdict.refusals] == [code]
        assert SENTENCES[code] in verdict.refusals[0].seen
        assert node.run(serving).stdout == before
        # An apply would mend it: the plan has seen it too.
        environment_ = planned(site, node).environment
        assert environment_ is not None
        assert environment_.changes, environment_.why
    finally:
        node.run(mend)


def test_an_apply_mends_them_all(site: Site, node: Node) -> None:
    for code in PIECES:
        broken(node, code)
    ran = site.tool("apply", timeout=900)
    assert ran.code == 0
    # Its own canary has compiled with what it mended, and the plan finds nothing to do.
    assert "compiling a kernel of SGLang for 8.9: done" in ran.out + ran.err
    assert {one["name"]: one["ended"] for one in kept(node)["steps"]} == dict.fromkeys(STEPS, 0)
    assert site.tool("plan", "--check").code == 0


OTHER_MODEL = "/srv/models/other"
"""The same model in another place: to the toolkit another one, with kernels of its own."""

SAME = """\
import flashinfer.jit.activation as activation
kernel = activation.gen_act_and_mul_module("silu")
made = kernel.jit_library_path.stat().st_mtime_ns
kernel.build(verbose=False)
print(kernel.jit_library_path, kernel.jit_library_path.stat().st_mtime_ns == made)
"""
"""Asks FlashInfer for a kernel as a server does; says whether it was there, up to date."""


def test_a_new_build_has_the_kernels_of_the_last_one_before_the_switch(
    site: Site, node: Node
) -> None:
    old = node.run(f"readlink -f {DEPLOYMENTS}/current/cache").stdout.strip()
    # What a server with a GPU would have left there; their names are all that is read.
    there = f"{old}/.cache/flashinfer/0.7.2/89/cached_ops"
    for name in ("silu_and_mul", "no_such_kernel"):
        node.run(f"install -D -o sglang -g sglang /dev/null {there}/{name}/{name}.so")
    node.run(f"cp -r /srv/models/tiny {OTHER_MODEL}")
    site.data["services"][0]["model"] = OTHER_MODEL
    try:
        plan = site.tool("plan")
        assert "that its last build compiled are compiled for 8.9" in plan.out
        ran = site.tool("apply", timeout=900)
    finally:
        site.data["services"][0]["model"] = MODEL
    assert ran.code == 0
    assert "silu_and_mul: compiled in " in ran.out + ran.err
    assert "1 not among those that the new FlashInfer offers" in ran.out + ran.err
    new = node.run(f"readlink -f {DEPLOYMENTS}/current/cache").stdout.strip()
    assert new != old
    record = json.loads(node.read(f"{new}/ahead.json"))
    assert (record["compiled"], record["failed"]) == (["silu_and_mul"], {})
    assert node.run(f"stat -c %U {new}/ahead.json").stdout.strip() == "sglang"
    # It was there before the old server was stopped, and is all that the new one asks for.
    began = node.run(f"systemctl show -p ExecMainStartTimestamp --value {UNIT}").stdout.strip()
    made = f"{new}/.cache/flashinfer/0.7.2/89/cached_ops/silu_and_mul/silu_and_mul.so"
    node.run(f'[ "$(stat -c %Y {made})" -le "$(date -d \'{began}\' +%s)" ]')
    properties = f"-p User=sglang -p EnvironmentFile={DEPLOYMENTS}/current/service.env"
    asked = node.run(
        f"systemd-run --quiet --wait --pipe {properties} -p Environment=FLASHINFER_CUDA_ARCH_LIST=8.9 "
        f"{environment(node)}/bin/python3 -",
        text=SAME,
    )
    assert asked.stdout.split() == [made, "True"]
    assert node.run("systemctl list-units --all --no-legend 'sglang-ahead*'").stdout == ""
