"""Every route of the pages, and the right that it needs."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

NAME = "cronjobs"

#: ``open``: everyone. ``token``: those with the tick token. ``read`` and ``act``: those whom
#: `authorize` allows; to act, a user must be allowed to read, too. ``form``: a page with a form
#: for those who may act.
Right: TypeAlias = Literal["open", "token", "read", "form", "act"]


class Route(NamedTuple):
    """One route. Its view is the function *endpoint* of the module *module* in this package.

    A route with ``act`` in its rule stands for several, since each takes 0.3 ms of an app's start.
    Its views are `run_retry`, `run_cancel` and so on.
    """

    rule: str
    endpoint: str
    module: str
    right: Right

    @property
    def methods(self) -> tuple[str, ...]:
        """Return ``GET`` for pages, ``POST`` for actions.

        All for the tick, since a 405 would say that the route exists: the guard lets two pass.
        """
        if self.right == "token":
            return ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        return ("POST",) if self.right == "act" else ("GET",)


ROUTES: tuple[Route, ...] = (
    Route("/", "overview", "views", "read"),
    Route("/runs", "runs", "views", "read"),
    Route("/runs/<int:run_id>", "run", "views", "read"),
    Route("/runs/<int:run_id>/edit", "edit", "actions", "form"),
    Route("/run", "prepare", "actions", "form"),
    Route("/runs/bulk", "bulk", "actions", "read"),
    Route("/definitions", "definitions", "views", "read"),
    Route("/definition", "definition", "views", "read"),
    Route("/task", "task", "views", "read"),
    Route("/effects", "effects", "views", "read"),
    Route("/batches", "batches", "views", "read"),
    Route("/batch", "batch", "views", "read"),
    Route("/ticks", "ticks", "views", "read"),
    Route("/order", "order", "views", "read"),
    Route("/metrics", "metrics", "monitoring", "read"),
    Route("/health", "health", "monitoring", "open"),
    Route("/tick", "tick", "monitoring", "token"),
    Route(
        "/runs/<int:run_id>/<any(retry, cancel, discard, again):act>", "run_act", "actions", "act"
    ),
    Route("/runs/bulk/act", "bulk_act", "actions", "act"),
    Route("/definitions/<any(run, pause, resume, remove):act>", "definition_act", "actions", "act"),
    Route("/<any(pause, resume):act>", "work_act", "actions", "act"),
    Route("/dead/retry", "dead_retry", "actions", "act"),
    Route("/batches/<any(retry, cancel, close):act>", "batch_act", "actions", "act"),
    Route("/effects/<any(done, redo):act>", "effect_act", "actions", "act"),
)

RIGHTS: dict[str, Right] = {
    f"{NAME}.static": "open",
    **{f"{NAME}.{route.endpoint}": route.right for route in ROUTES},
}

#: The routes for machines: they answer in plain text or JSON, also on errors.
MACHINES = frozenset(f"{NAME}.{endpoint}" for endpoint in ("health", "metrics", "tick", "static"))
