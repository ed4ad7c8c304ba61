"""Which of a node's services are meant."""

from __future__ import annotations

import pytest

from plans.deployed import NotDeployed, chosen
from tests.unit.deployments import converged, fresh, kinds, plan, with_state


def test_all_are_meant_where_none_is_named() -> None:
    assert list(chosen(converged(), ())) == ["chat"]
    assert list(chosen(converged(), ("chat",))) == ["chat"]


def test_one_that_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(NotDeployed, match="other is not deployed here: there is chat"):
        chosen(converged(), ("other",))
    with pytest.raises(NotDeployed, match="no service is deployed here"):
        chosen(fresh(), ())
    with pytest.raises(NotDeployed, match=r"^other is not deployed here: no service is deployed"):
        chosen(fresh(), ("other",))


@pytest.mark.parametrize("text", ["", "{", '{"service": {"api-key": *MASKED*}}', "[]"])
@pytest.mark.parametrize("only", [(), ("chat",)])
def test_one_whose_plan_cannot_be_read_is_never_said_not_to_be_there(
    text: str, only: tuple[str, ...]
) -> None:
    node = with_state(converged(), plan=text)
    with pytest.raises(NotDeployed, match=r"chat is deployed, and plan\.json of it cannot be read"):
        chosen(node, only)
    changed = plan(node)
    assert kinds(changed)[0] == "deployment"
    assert "plan.json of the current deployment cannot be read" in changed.changes[0].why
