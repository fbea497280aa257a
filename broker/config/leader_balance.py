"""What the configuration says of moving leaderships between the processes of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.broker.config.key import number
from lowtide.replication.leader_balance import BalanceRules

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig


def balance_rules(config: BrokerConfig) -> BalanceRules | None:
    """As they are configured; None where leaderships stay."""
    values = config.values
    if values["lowtide.leader.balance.enable"] is not True:
        return None
    return BalanceRules(
        full=number(values["lowtide.leader.balance.busy.percent"]) / 100,
        moves_per_minute=number(values["lowtide.leader.balance.moves.per.minute"]),
    )
