"""Every route of the pages, and the right that it needs."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

NAME = "cronjobs"

#: ``open``: everyone. ``token``: those with the tick token. ``read`` and ``act``: those whom
#: `authorize` allows; to act, a user must be allowed to read, too. ``form``: a page with a form
#: for those who may act.
Right: TypeAlias = Literal["open", "token", "read", "form", "act"]


class Route(NamedTuple):
    """One route. Its view is the function *endpoint* of the module *module* in this package."""

    rule: str
    endpoint: str
    module: str
    right: Right

    @property
    def methods(self) -> tuple[str, ...]:
        """Return ``GET`` for pages, ``POST`` for actions.

        All for the tick, since a 405 would say that the route exists: the guard lets ``POST`` pass.
        """
        if self.right == "token":
            return ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        return ("POST",) if self.right == "act" else ("GET",)


ROUTES: tuple[Route, ...] = (
    Route("/", "overview", "views", "read"),
    Route("/runs", "runs", "run_pages", "read"),
    Route("/runs/<int:run_id>", "run", "run_pages", "read"),
    Route("/runs/<int:run_id>/edit", "edit", "arguments", "form"),
    Route("/run", "prepare", "arguments", "form"),
    Route("/runs/bulk", "bulk", "bulk", "read"),
    Route("/definitions", "definitions", "views_definitions", "read"),
    Route("/definition", "definition", "views_definitions", "read"),
    Route("/task", "task", "views_definitions", "read"),
    Route("/effects", "effects", "views", "read"),
    Route("/batches", "batches", "views_batches", "read"),
    Route("/batch", "batch", "views_batches", "read"),
    Route("/ticks", "ticks", "views", "read"),
    Route("/order", "order", "views_order", "read"),
    Route("/metrics", "metrics", "machines", "read"),
    Route("/health", "health", "machines", "open"),
    Route("/tick", "tick", "machines", "token"),
    Route("/runs/<int:run_id>/retry", "retry", "actions", "act"),
    Route("/runs/<int:run_id>/cancel", "cancel", "actions", "act"),
    Route("/runs/<int:run_id>/discard", "discard", "actions", "act"),
    Route("/runs/bulk/act", "bulk_act", "bulk", "act"),
    Route("/runs/<int:run_id>/again", "again", "actions", "act"),
    Route("/definitions/run", "run_now", "actions", "act"),
    Route("/definitions/pause", "pause", "actions", "act"),
    Route("/definitions/resume", "resume", "actions", "act"),
    Route("/definitions/remove", "remove", "actions", "act"),
    Route("/pause", "pause_work", "actions", "act"),
    Route("/resume", "resume_work", "actions", "act"),
    Route("/dead/retry", "retry_group", "actions", "act"),
    Route("/batches/retry", "batch_retry", "views_batches", "act"),
    Route("/batches/cancel", "batch_cancel", "views_batches", "act"),
    Route("/batches/close", "batch_close", "views_batches", "act"),
    Route("/effects/done", "effect_done", "actions", "act"),
    Route("/effects/redo", "effect_redo", "actions", "act"),
)

RIGHTS: dict[str, Right] = {
    f"{NAME}.static": "open",
    **{f"{NAME}.{route.endpoint}": route.right for route in ROUTES},
}

#: The routes for machines: they answer in plain text or JSON, also on errors.
MACHINES = frozenset(f"{NAME}.{endpoint}" for endpoint in ("health", "metrics", "tick", "static"))
