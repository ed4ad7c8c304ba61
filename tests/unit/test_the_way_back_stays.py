"""Whatever is upgraded, fails, is gone back from and is collected: there is a way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from facts.records import Environment, LocalImage, ManagedFile, ServiceState, Survey, known
from plans import paths
from plans.collection import GOOD_KEPT, Collection, Policy, collect
from plans.deployment import PlannedFile
from plans.goingback import go_back
from plans.history import history
from plans.pastdeployment import has_served, launch_of
from plans.stock import Image, Kept, ServiceLinks, Stock, Thing
from tests.unit.deployments import CAP, applied, fresh, lock, one, plan, with_state
from tests.unit.surveys import wishes
from tests.unit.wheels import environment, wheel_plan

DAY = 86400
HARDEST = Policy(1, 0)
UV = f"{paths.TOOLS}/uv-2"

steps = st.one_of(
    st.tuples(
        st.just("upgrade"),
        st.sampled_from(["image", "wheel"]),
        st.integers(1, 5),  # what it asks for: some deployments are equal, and so share a build
        st.sampled_from(["serves", "silent", "fails"]),  # fails: it serves, not through its soak
    ),
    st.tuples(st.just("back"), st.integers(0, 5)),
)
policies = st.one_of(
    st.none(),  # nobody collects
    st.just(HARDEST),
    st.builds(Policy, st.sampled_from([1, 2, 4]), st.sampled_from([0, DAY, 5 * DAY])),
)


@dataclass
class Model:
    """A node as its survey reads it, with the times at which things were written."""

    node: Survey
    clock: int = 1796000000

    @property
    def state(self) -> ServiceState:
        return self.node.services["chat"]

    def upgrade(self, runtime: str, asked: int, ends: str) -> None:
        wanted = wishes(CAP | {"arguments": {"max-running-requests": asked}})
        if runtime == "image":
            made = plan(self.node, wanted, lock(index_digest=f"sha256:{asked:064x}"))
        else:
            made = wheel_plan(self.node, wanted, environment(key=f"{asked:016x}"))
        service = one(made)
        assert service.launch is not None, made.refusals
        if not service.new_deployment:
            return
        written = dict(self.state.written) if "chat" in self.node.services else {}
        images, environments = self.node.docker.images, dict(self.node.environments)
        if service.environment is not None:
            path = paths.environment(service.environment.key)
            environments[service.environment.key] = Environment(path, "{}", "", (), (), ())
        else:
            digest = service.launch.image.partition("@")[2]
            image = LocalImage("lmsysorg/sglang", None, digest, digest)
            images = tuple({one.digest: one for one in (*images, image)}.values())
        self.node = replace(
            applied(made, self.node),
            docker=replace(self.node.docker, images=images),
            environments=environments,
        )
        written[f"{service.number}/{paths.PLAN_JSON}"] = self.clock
        if ends != "silent":
            written[f"{service.number}/{paths.RECORD_JSON}"] = self.clock
        self.node = with_state(self.node, written=written)
        if ends == "fails":
            path = paths.Deployment("chat", service.number).file(paths.RECORD_JSON)
            file = ManagedFile(path, True, text='{"upgrade": "failed", "result": "its soak"}')
            self.node = replace(self.node, files={**self.node.files, path: file})
            self.go_back(0)

    def failed(self, number: int) -> bool:
        """Say whether an upgrade to a deployment failed."""
        path = paths.Deployment("chat", number).file(paths.RECORD_JSON)
        return '"failed"' in str(self.node.files[path].text if path in self.node.files else "")

    @property
    def good(self) -> list[int]:
        """Those that have answered and stood their upgrade, the oldest first."""
        there = sorted(self.state.deployments)
        return [n for n in there if has_served(self.state, n) and not self.failed(n)]

    def go_back(self, steps: int) -> None:
        """Go back to the previous deployment, or to the n-th of those that have answered."""
        good = self.good
        to = None if steps == 0 or not good else good[-min(steps, len(good))]
        way = go_back(self.node, self.state, to)
        if way.refusals or way.moved:
            return
        launch = launch_of(self.node, self.state, way.number)
        files = {**self.node.files, **{one.path: _placed(one) for one in way.replaced}}
        files = {path: file for path, file in files.items() if path not in way.removed}
        self.node = with_state(
            replace(self.node, files=files),
            current=way.number,
            previous=way.current,
            fragment_path=paths.wheel_unit("chat") if way.runtime == "wheel" else paths.UNIT,
            launch=launch,
            plan=self.node.files[paths.Deployment("chat", way.number).file("plan.json")].text,
            written={**self.state.written, f"{way.number}/{paths.RECORD_JSON}": self.clock},
        )

    def stock(self) -> Stock:
        """Return what the node would say that it keeps."""
        state = self.state
        kept, things, images = [], {}, {}
        for number in state.deployments:
            launch = launch_of(self.node, state, number)
            written = [
                when for name, when in state.written.items() if name.startswith(f"{number}/")
            ]
            made = state.written.get(f"{number}/{paths.PLAN_JSON}")
            one = Kept(
                "chat",
                number,
                made,
                max(written, default=None),
                number in self.good,
                bool(launch),
                launch.get("SGLANG_IMAGE", ""),
                launch.get("SGLANG_ENVIRONMENT", ""),
                launch.get("SGLANG_KERNELS", ""),
            )
            kept.append(one)
            things[one.kernels] = Thing("cache", one.kernels, 0, "700", made)
            if one.environment:
                there = f"{paths.PYTHONS}/cpython-3.12"
                things[one.environment] = Thing(
                    "environment", one.environment, 0, "755", made, 1, True, f"{there}/bin/python3"
                )
                things[there] = Thing("python", there, 0, "755", made)
            if one.image:
                images[one.image] = Image(one.image, one.image.partition("@")[2], 1, 0)
        links = ServiceLinks(
            state.current if known(state.current) else None,
            state.previous if known(state.previous) else None,
            state.current if known(state.current) else None,
        )
        return Stock(
            self.clock, 0, 999, {"chat": links}, tuple(kept), tuple(things.values()),
            tuple(images.values()),
        )  # fmt: skip

    def collect(self, policy: Policy) -> Collection:
        """Take from the node what a collection says."""
        found = collect(self.stock(), policy, UV)
        gone = {one.what for one in found.items}
        numbers = {
            int(one.what.rsplit("/", 1)[1]) for one in found.items if one.kind == "deployment"
        }
        state = self.state
        digests = {one.partition("@")[2] for one in gone if "@" in one}
        self.node = replace(
            with_state(
                self.node,
                deployments=tuple(n for n in state.deployments if n not in numbers),
                written={
                    name: when
                    for name, when in state.written.items()
                    if int(name.partition("/")[0]) not in numbers
                },
            ),
            files={
                path: file
                for path, file in self.node.files.items()
                if path.rsplit("/", 1)[0] not in gone
            },
            environments={
                key: made for key, made in self.node.environments.items() if made.path not in gone
            },
            docker=replace(
                self.node.docker,
                images=tuple(i for i in self.node.docker.images if i.digest not in digests),
            ),
        )
        return found


def _placed(file: PlannedFile) -> ManagedFile:
    return ManagedFile(file.path, True, file.sha256, file.mode, "root:root", file.text)


def whole(model: Model) -> list[str]:
    """Return what is missing of the deployments that must be startable; none is good."""
    state = model.state
    good = model.good[-GOOD_KEPT:]
    wanted = {n for n in (state.current, state.previous) if known(n)} | set(good)
    there = {one.path for one in model.stock().things}
    missing = []
    for number in sorted(wanted):
        launch = launch_of(model.node, state, number)
        if number not in state.deployments or not launch:
            missing.append(f"deployment {number}")
            continue
        image, environment = launch.get("SGLANG_IMAGE"), launch.get("SGLANG_ENVIRONMENT")
        if image and image.partition("@")[2] not in {
            one.digest for one in model.node.docker.images
        }:
            missing.append(f"image of {number}")
        if environment and environment not in {
            one.path for one in model.node.environments.values()
        }:
            missing.append(f"environment of {number}")
        if launch["SGLANG_KERNELS"] not in there:
            missing.append(f"kernels of {number}")
    return missing


@example([(("upgrade", "wheel", 2, "silent"), None), (("upgrade", "image", 3, "silent"), HARDEST)])
@example(
    [
        *((("upgrade", "image", n, "serves"), None) for n in (2, 3, 4)),
        (("back", 4), None),
        (("upgrade", "wheel", 5, "silent"), HARDEST),
    ]
)
@example(
    [
        (("upgrade", "image", 2, "serves"), None),
        (("upgrade", "image", 3, "fails"), None),
        (("upgrade", "wheel", 4, "fails"), HARDEST),
    ]
)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(steps, policies), min_size=3, max_size=12))
def test_current_and_previous_can_always_be_started(sequence: list[Any]) -> None:
    model = Model(fresh())
    model.upgrade("image", 1, "serves")
    for (kind, *words), policy in sequence:
        model.clock += DAY
        model.upgrade(*words) if kind == "upgrade" else model.go_back(*words)
        if policy is not None:
            collected_after(model, policy)
    previous = model.state.previous
    if previous in model.good:
        way = go_back(model.node, model.state, None)
        assert [one.code for one in way.refusals] == []
    for number in model.good[-GOOD_KEPT:]:
        if number != model.state.current:
            assert go_back(model.node, model.state, number).refusals == ()


def collected_after(model: Model, policy: Policy) -> None:
    """Collect, and check that what must stay did, and that a second run finds nothing."""
    good = model.good
    assert not model.collect(policy).refusals
    assert whole(model) == []
    assert {*good[-GOOD_KEPT:]} <= {*model.state.deployments}
    assert model.collect(policy).items == ()
    assert all(entry.runs for entry in history(model.node, model.state).entries)


def test_the_model_does_lose_its_way_back_where_nothing_is_kept() -> None:
    model = Model(fresh())
    for asked in (1, 2, 3):
        model.upgrade("image", asked, "serves")
        model.clock += 100 * DAY
    assert whole(model) == []
    state = model.state
    model.node = with_state(model.node, deployments=tuple(n for n in state.deployments if n != 2))
    assert whole(model) == ["deployment 2"]
    model.node = with_state(model.node, deployments=state.deployments)
    model.node = replace(model.node, docker=replace(model.node.docker, images=()))
    assert whole(model) == ["image of 2", "image of 3"]
