"""Send email by SMTP."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import make_msgid

from flask import current_app

TIMEOUT = 10.0


@dataclass(frozen=True)
class Letter:
    """An email, before it is sent."""

    to: str
    subject: str
    body: str


def send_mail(letter: Letter) -> str:
    """Send *letter* to the mail server.

    :returns: its Message-ID; or, if the server will never take it, what the server said.
    :raises OSError: the server could not be reached, or asks to try again later.
    """
    config = current_app.config
    message = EmailMessage()
    message["Message-ID"] = make_msgid(domain="example.com")
    message["From"] = config["MAIL_FROM"]
    message["To"] = letter.to
    message["Subject"] = letter.subject
    message.set_content(letter.body)
    try:
        with smtplib.SMTP(config["MAIL_HOST"], config["MAIL_PORT"], timeout=TIMEOUT) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, text = error.recipients[letter.to]  # A letter has one address.
        if code < 500:
            raise
        # The address is wrong, so a retry would not help.
        return f"refused: {code} {text.decode(errors='replace')}"
    return str(message["Message-ID"])
