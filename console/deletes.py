"""The page of deletes: those of this session with their progress, those that wait in the cluster, and those that ended last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.console.delete_job import jobs_value
from lowtide.console.insight import deletes_of

if TYPE_CHECKING:
    from lowtide.console.sessions import Session


async def deletes_page(session: Session) -> dict[str, Any]:
    """Errors: AdminError."""
    return {"own": jobs_value(list(session.work.jobs.items())), **await deletes_of(session)}
