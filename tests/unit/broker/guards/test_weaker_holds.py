"""Who may change a topic's configuration can't lift a hold that somebody else has set."""

from __future__ import annotations

import pytest

from lowtide.broker.authorizer.resources import CLUSTER, Operation, topic
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages import alter_configs, incremental_alter_configs

from .asking import Only, ask

WHOLE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

HELD = {"lowtide.hold.until": "5000", "lowtide.hold.reason": "case 7"}


@pytest.mark.parametrize(
    ("configs", "is_weaker"),
    [
        ({"lowtide.hold.until": "5001"}, False),
        ({"lowtide.hold.until": "5000", "lowtide.hold.reason": "case 8"}, False),
        ({"lowtide.hold.until": "x"}, False),
        ({"lowtide.hold.until": "4999"}, True),
        ({"lowtide.hold.until": "-1"}, True),
        ({"lowtide.hold.until": None}, True),
        ({"lowtide.hold.reason": "nothing"}, True),
        ({"lowtide.hold.reason": None}, True),
        ({"retention.ms": "1"}, False),
    ],
)
def test_to_weaken_a_hold_needs_alter_on_the_cluster(configs: dict[str, str | None], is_weaker: bool) -> None:
    """Who may configure a topic can't delete what somebody else holds. AlterConfigs removes keys that it leaves out."""
    of_topic, both = (Operation.ALTER_CONFIGS, topic("t")), (Operation.ALTER, CLUSTER)
    change = incremental_alter_configs.AlterableConfig
    rows = [change(name=key, config_operation=0 if text else 1, value=text) for key, text in configs.items()]
    row = incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=rows)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[row], validate_only=False)
    empty = incremental_alter_configs.IncrementalAlterConfigsResponse(responses=[])
    passed, told, _ = ask(Only(of_topic), request, empty, set_on_topic=HELD)
    assert passed is None or passed.resources == ([] if is_weaker else [row])
    assert [each.error_code for each in told.responses] == ([WHOLE] if is_weaker else [])
    assert ask(Only(of_topic, both), request, empty, set_on_topic=HELD)[0].resources == [row]
    assert ask(Only(of_topic), request, empty)[0].resources == [row], "without a hold nothing is weakened"
    whole = alter_configs.AlterConfigsResource(
        resource_type=2,
        resource_name="t",
        configs=[alter_configs.AlterableConfig(name=key, value=text) for key, text in configs.items() if text],
    )
    asked = alter_configs.AlterConfigsRequest(resources=[whole], validate_only=False)
    loses = is_weaker or "lowtide.hold.until" not in configs
    told = ask(Only(of_topic), asked, alter_configs.AlterConfigsResponse(responses=[]), set_on_topic=HELD)[1]
    assert [each.error_code for each in told.responses] == ([WHOLE] if loses else [])
