"""What is planned for an environment: what is built, repaired, installed or refused, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.records import ABSENT, Account, Environment, Program, Space, Survey, Toolchain, Unknown
from plans import paths
from plans.findings import Findings
from plans.wheel.cuda_home import cuda_home
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.locks import Requirements
from plans.wheel.planned import environment_of
from plans.wheel.tools import uv_path
from releases.wheels import WheelLock, wheel_lock, write_lock
from tests.unit.surveys import survey, wish


def carried() -> WheelLock:
    """Return the lock that the toolkit carries."""
    there = wheel_lock("0.5.23", "x86_64")
    assert there is not None
    return there


LOCK = carried()
WANTED = Requirements(LOCK, write_lock(LOCK))
KEY = WANTED.digest
PARTS = (
    "bin/python3",
    "Python.h",
    "cu13/bin/nvcc",
    "cu13/nvvm/bin/cicc",
    "cu13/lib64",
    "cu13/lib64/libcudart.so",
)
ROOMY = {
    path: Space(path, True, "/", mount="/", free_bytes=10**12, read_only=False)
    for path in (paths.OPT, paths.CACHES)
}
OURS = Account("sglang", True, 998, 998, paths.HOME, "/usr/sbin/nologin")
TOOLS = Toolchain(
    compilers=tuple(Program(f"/usr/bin/{name}", "13.3.0") for name in ("g++", "c++", "gcc")),
    libcuda="/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    libcuda_link="/usr/lib/x86_64-linux-gnu/libcuda.so",
    libnuma="/lib/x86_64-linux-gnu/libnuma.so.1",
    package_manager="/usr/bin/apt-get",
    tools=(uv_path(),),
)


def environment(**changes: Any) -> Environment:
    """Return an environment that is there and whole."""
    mark = json.dumps({"key": KEY, "parts": PARTS})
    whole = Environment(paths.environment(KEY), mark, "lib/python3.12/site-packages", PARTS, (), ())
    return replace(whole, **changes)


def node(there: Environment | None = None, **changes: Any) -> Survey:
    """Return the survey of a node on which all is as it should be; ``there`` is the environment."""
    base = replace(
        survey(),
        toolchain=TOOLS,
        spaces=ROOMY,
        accounts={"sglang": OURS},
        environments={KEY: there} if there else {},
    )
    return replace(base, **changes)


def planned(there: Survey) -> tuple[PlannedEnvironment, Findings]:
    service, wanted = wish({})
    found = Findings()
    return environment_of(service, WANTED, wanted, there, found), found


def test_an_environment_that_is_there_and_whole_is_left_alone() -> None:
    plan, found = planned(node(environment()))
    assert not plan.changes
    assert (found.changes, found.refusals) == ([], [])
    assert plan.python_path == f"/opt/sglang/environments/{KEY}/bin/python3"


def test_on_a_fresh_node_everything_is_made_and_each_thing_is_said() -> None:
    bare = Toolchain(package_manager="/usr/bin/apt-get")
    plan, found = planned(node(toolchain=bare, accounts={"sglang": Account("sglang", False)}))
    assert plan.build
    assert plan.bring_uv
    assert plan.account
    assert plan.packages == ("g++", "libnuma1")
    assert plan.python_packages == ("python3.12", "python3.12-dev", "libpython3.12-dev")
    assert found.refusals == []
    assert [(one.kind, one.what.partition(",")[0].partition(":")[0]) for one in found.changes] == [
        ("environment", "user sglang"),
        ("packages", "g++"),
        ("packages", "libnuma1"),
        ("environment", KEY),
    ]
    assert all(one.why for one in found.changes)
    assert "Python 3.12 with headers" in found.changes[-1].what
    assert "206 packages (4.2 GB" in found.changes[-1].what


def test_what_is_installed_where_uv_fetches_no_python_is_said_before() -> None:
    (change,) = planned(node())[1].changes
    assert "uv cannot fetch" in change.why
    assert "python3.12, python3.12-dev, libpython3.12-dev of the distribution" in change.why
    alone = node(toolchain=replace(TOOLS, package_manager=ABSENT))
    assert [one.why for one in planned(alone)[1].changes] == ["not on the node"]


def test_packages_that_a_marker_may_leave_out_are_not_counted_on() -> None:
    first, *others = LOCK.packages
    marked = first.model_copy(update={"marker": "python_version < '3.12'"})
    lock = LOCK.model_copy(update={"packages": (marked, *others)})
    service, wanted = wish({})
    plan = environment_of(service, Requirements(lock, write_lock(lock)), wanted, node(), Findings())
    assert (plan.count, plan.least) == (206, 205)


def test_the_red_hat_family_gets_its_own_names() -> None:
    plan, _ = planned(node(toolchain=Toolchain(package_manager="/usr/bin/dnf")))
    assert plan.packages == ("gcc-c++", "numactl-libs")
    assert plan.python_packages == ("python3.12", "python3.12-devel")


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (environment(mark=ABSENT, missing=ABSENT, changed=ABSENT), "no mark"),
        (environment(mark=Unknown("malformed", "{")), "no mark"),
        (environment(mark='{"key": "fedcba9876543210"}'), "of another environment"),
        (environment(missing=("bin/python3",)), "no bin/python3 any more"),
        (environment(missing=("Python.h",)), "no Python.h any more"),
        (environment(missing=("cu13/bin/nvcc", "cu13/lib64")), "no cu13/bin/nvcc any more"),
        (
            environment(changed=("+ torch-2.13.0.dist-info", "- torch-2.14.1.dist-info")),
            "its packages were changed: + torch-2.13.0.dist-info",
        ),
        (environment(missing=Unknown("unreadable", "time")), "is not known"),
        (environment(changed=Unknown("unreadable", "time")), "is not known"),
    ],
)
def test_what_is_not_whole_is_built_anew_and_the_plan_says_what_was_wrong(
    there: Environment, why: str
) -> None:
    plan, found = planned(node(there))
    assert plan.build
    assert not plan.repair
    assert why in plan.why
    (change,) = found.changes
    assert change.why.startswith(plan.why)


@pytest.mark.parametrize("links", [("cu13/lib64", "cu13/lib64/libcudart.so"), PARTS[-1:]])
def test_links_alone_are_repaired_in_place(links: tuple[str, ...]) -> None:
    plan, found = planned(node(environment(missing=links)))
    assert (plan.build, plan.repair) == (False, True)
    assert not plan.bring_uv
    assert [one.kind for one in found.changes] == ["environment"]
    assert links[0] in found.changes[0].why


def test_a_link_for_the_driver_is_made_where_the_host_lost_its_own() -> None:
    without = replace(TOOLS, libcuda_link=ABSENT)
    assert planned(node(environment(), toolchain=without))[0].repair
    stub = (*PARTS, "cu13/lib/stubs/libcuda.so")
    assert not planned(node(environment(parts=stub), toolchain=without))[0].changes
    # Without a driver there is nothing to link to.
    none = replace(without, libcuda=ABSENT)
    assert not planned(node(environment(), toolchain=none))[0].changes


def test_what_a_cut_run_left_is_discarded() -> None:
    half = Environment(paths.environment(f"{KEY}.new"))
    other = Environment(paths.environment("0" * 16 + ".old"))
    theirs = Environment(paths.environment("mine.old"))
    there = {KEY: environment(), f"{KEY}.new": half, "0" * 16 + ".old": other, "mine.old": theirs}
    there["0" * 16] = replace(other, path=paths.environment("0" * 16))
    plan, found = planned(node(environments=there))
    assert not plan.build
    assert plan.leftovers == tuple(sorted((f"{KEY}.new", "0" * 16 + ".old")))
    assert "cut" in found.changes[0].why
    plan, _ = planned(node(environments={f"{KEY}.new": half}))
    assert plan.build
    assert "half-made" in plan.why


def test_what_a_cut_run_took_away_is_put_back() -> None:
    away = Environment(paths.environment("0" * 16 + ".old"))
    plan, found = planned(node(environments={KEY: environment(), "0" * 16 + ".old": away}))
    assert (plan.leftovers, plan.taken_away, plan.build) == ((), ("0" * 16,), False)
    assert plan.changes
    assert [one.what for one in found.changes] == [f"put {'0' * 16} back in place"]


def test_two_services_with_the_same_packages_share_one_environment() -> None:
    service, wanted = wish({})
    found = Findings()
    for _ in range(2):
        environment_of(service, WANTED, wanted, node(), found)
    assert [one.kind for one in found.changes] == ["environment"]


def refused(there: Survey) -> dict[str, str]:
    _, found = planned(there)
    assert all(one.needed and one.advice for one in found.refusals)
    return {one.code: one.seen for one in found.refusals}


def test_a_disk_without_room_is_refused_with_the_sum() -> None:
    size = WANTED.size * 3
    short = {
        path: replace(space, free_bytes=size - 1, mount=mount)
        for (path, space), mount in zip(ROOMY.items(), ("/", "/var"), strict=True)
    }
    _, found = planned(node(spaces=short))
    assert [one.code for one in found.refusals] == ["DISK_FULL", "DISK_FULL"]
    assert "3 times" in found.refusals[0].needed
    one_disk = {path: replace(space, mount="/") for path, space in short.items()}
    assert len(planned(node(spaces=one_disk))[1].refusals) == 1
    # What is there takes no more room.
    assert refused(node(environment(), spaces=short)) == {}


def test_a_disk_of_which_nothing_is_known_or_that_takes_no_write_is_said() -> None:
    _, found = planned(node(spaces={}))
    assert [one.code for one in found.cautions] == ["SPACE_UNKNOWN", "SPACE_UNKNOWN"]
    closed = {path: replace(space, read_only=True) for path, space in ROOMY.items()}
    assert set(refused(node(spaces=closed))) == {"READ_ONLY"}


@pytest.mark.parametrize(
    "account",
    [
        Account("sglang", True, 1000, 1000, "/home/sglang", "/bin/bash"),
        replace(OURS, uid=0),
        Account("sglang", True, 998, 998, paths.HOME, Unknown("malformed", "x")),
        Account("sglang", Unknown("unreadable", "getent")),
        None,
    ],
)
def test_a_user_that_is_a_person_s_or_not_known_is_refused(account: Account | None) -> None:
    accounts = {"sglang": account} if account else {}
    assert set(refused(node(environment(), accounts=accounts))) == {"ACCOUNT_NOT_OURS"}


def test_environments_that_could_not_be_looked_at_are_refused() -> None:
    unread = Unknown("unreadable", "did not return in time")
    assert "did not return" in refused(node(environments_unread=unread))["ENVIRONMENTS_UNREAD"]


def test_a_compiler_that_only_a_login_finds_is_none() -> None:
    conda = replace(TOOLS, compilers=tuple(
        Program(f"/opt/conda/bin/{name}", "16.1.0") for name in ("g++", "c++", "gcc")
    ))  # fmt: skip
    plan, found = planned(node(environment(), toolchain=conda))
    assert plan.packages == ("g++",)
    assert found.refusals == []


def test_without_a_package_manager_what_is_missing_is_named() -> None:
    seen = refused(
        node(environment(), toolchain=replace(TOOLS, package_manager=ABSENT, libnuma=ABSENT))
    )
    assert "libnuma.so.1 missing" in seen["PACKAGE_MANAGER_MISSING"]


# --- CUDA_HOME


def home(
    version: Any = "13.0.2", path: str = "/usr/local/cuda-13.0", lacks: Any = ABSENT
) -> Program:
    return Program(path, version, lacks)


def chosen(*homes: Program, nvccs: tuple[Program, ...] = ()) -> Any:
    return cuda_home(KEY, LOCK, node(toolchain=replace(TOOLS, cuda_homes=homes, nvccs=nvccs)))


def test_the_host_s_own_toolkit_is_taken_where_it_is_whole_and_of_the_lock_s_release() -> None:
    link = home(path="/usr/local/cuda")
    found = chosen(link, home())
    assert (found.source, found.path) == ("host", "/usr/local/cuda-13.0")
    assert "CUDA 13.0" in found.reason
    assert chosen(link).path == "/usr/local/cuda"
    nvcc = Program("/usr/local/cuda-13.0/bin/nvcc", "13.0")
    assert chosen(home(ABSENT), nvccs=(nvcc,)).source == "host"


@pytest.mark.parametrize(
    ("homes", "reason"),
    [
        ((), "the host has no CUDA toolkit"),
        ((home("13.5.1"),), "/usr/local/cuda-13.0 is CUDA 13.5"),
        ((home("12.9.1"),), "is CUDA 12.9"),
        ((home(ABSENT),), "does not say its version"),
        ((home(lacks="no include/cublasLt.h"),), "has no include/cublasLt.h"),
    ],
)
def test_else_the_tree_of_the_wheels_is_taken_and_the_plan_says_why(
    homes: tuple[Program, ...], reason: str
) -> None:
    found = chosen(*homes)
    assert found.source == "wheels"
    assert found.path == f"{paths.environment(KEY)}/lib/python3.12/site-packages/nvidia/cu13"
    assert reason in found.reason


def test_a_lock_without_a_compiler_has_no_cuda_home_and_asks_for_none() -> None:
    cpu = LOCK.model_copy(
        update={
            "packages": tuple(
                p for p in LOCK.packages if not p.name.startswith(("nvidia-", "sglang-k"))
            ),
            "device": "cpu",
            "cuda": None,
        }
    )
    service, wanted = wish({})
    found = Findings()
    bare = node(toolchain=Toolchain(package_manager="/usr/bin/apt-get"))
    plan = environment_of(service, Requirements(cpu, write_lock(cpu)), wanted, bare, found)
    assert plan.cuda_home is None
    assert plan.packages == ()


ANY = st.one_of(
    st.sampled_from([ABSENT, Unknown("unreadable", "x"), Unknown("malformed", "y"), "", "text"]),
    st.text(max_size=8),
)
PARTS_OR_NOT = st.one_of(
    st.lists(st.sampled_from(PARTS), unique=True).map(tuple), st.just(Unknown("unreadable"))
)


@given(
    mark=st.one_of(ANY, st.just(json.dumps({"key": KEY}))),
    missing=PARTS_OR_NOT,
    changed=st.one_of(st.just(()), st.just(("+ x",)), st.just(Unknown("unreadable"))),
    shell=ANY,
    libnuma=ANY,
    manager=ANY,
    version=ANY,
)
def test_what_is_not_known_is_never_taken_for_whole(
    mark: Any, missing: Any, changed: Any, shell: Any, libnuma: Any, manager: Any, version: Any
) -> None:
    there = environment(mark=mark, missing=missing, changed=changed)
    tools = replace(TOOLS, libnuma=libnuma, package_manager=manager)
    plan, found = planned(
        node(there, toolchain=tools, accounts={"sglang": Account("sglang", True, 1, 1, "/", shell)})
    )
    whole = mark == json.dumps({"key": KEY}) and missing == () and changed == ()
    assert whole or plan.build or plan.repair
    assert bool(found.changes) == plan.changes
    if isinstance(shell, Unknown) or not shell.endswith(("nologin", "false")):
        assert "ACCOUNT_NOT_OURS" in {one.code for one in found.refusals}
