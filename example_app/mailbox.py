"""A local mail server that keeps all emails, for the demo and the tests."""

from __future__ import annotations

import email.message
import email.policy
import socket
from types import TracebackType

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session


class Mailbox:
    """A real SMTP server, as a context manager; it can refuse the emails to some addresses.

    :ivar mails: what arrived, in order.
    :ivar answers: the answers to a recipient, one for each email that is refused.
    """

    def __init__(self) -> None:
        self.mails: list[email.message.EmailMessage] = []
        self.answers: dict[str, list[str]] = {}
        self.port = _free_port()
        self._controller = Controller(
            self, hostname="127.0.0.1", port=self.port, server_hostname="mailbox"
        )

    def __enter__(self) -> Mailbox:
        self._controller.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._controller.stop()

    def to(self, address: str) -> list[email.message.EmailMessage]:
        """Return the emails that arrived for *address*."""
        return [mail for mail in self.mails if mail["To"] == address]

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Accept the recipient, or give the answer set for it."""
        if answers := self.answers.get(address):
            return answers.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Keep the email."""
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(email.message_from_bytes(content, policy=email.policy.default))
        return "250 OK"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
