"""E-mail by Django, through the server of RECOURSE_EMAIL_URL: plain text, and the same with links as simple HTML.

All recipients of a channel get one mail, in groups that mail servers take. Its Message-ID is made of the delivery's
id, so that mail programs know a repetition. A server that takes a mail for some of its recipients only has taken it:
it tells the sender's address about the others. Time is bounded for each step of SMTP, not for all of them.
"""

from __future__ import annotations

import smtplib
from collections.abc import Sequence
from contextlib import suppress
from email.utils import parseaddr
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMultiAlternatives, get_connection
from django.core.validators import validate_email
from django.utils.html import format_html, format_html_join

from approvals.models import Delivery
from approvals.notifications.addresses import NotTaken
from pipelines.models import Member, Role

GROUP = 50  # recipients of one mail; every server takes as many
ROLE = "role:"


def send(delivery: Delivery) -> str:
    """Mails the delivery; what came of it. Raises `NotTaken`."""
    if not settings.EMAIL_HOST:
        raise NotTaken("no mail server is set: RECOURSE_EMAIL_URL is empty")
    to = recipients(delivery)
    if not to:
        raise NotTaken("none of the channel's recipients has an e-mail address")
    groups = [to[first : first + GROUP] for first in range(0, len(to), GROUP)]
    mails = [_mail(delivery, group, number) for number, group in enumerate(groups)]
    server = get_connection()
    try:
        server.open()
        server.send_messages(mails)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise NotTaken(_sentence(error)) from None
    finally:
        with suppress(OSError, smtplib.SMTPException):
            server.close()  # of its own it stays open when the greeting or the log-in failed
    return f"taken for {len(to)} {'recipient' if len(to) == 1 else 'recipients'}"


def recipients(delivery: Delivery) -> list[str]:
    """The addresses of a channel, each once: those it names, and those of the active members of the roles it names."""
    named = delivery.channel.recipients
    roles = [entry.removeprefix(ROLE) for entry in named if entry.startswith(ROLE)]
    found = [entry for entry in named if not entry.startswith(ROLE)]
    if roles:
        members = Member.objects.filter(workspace=delivery.workspace_id, role__in=roles, user__is_active=True)
        found += members.exclude(user__email="").order_by("user__email").values_list("user__email", flat=True)
    return list({address.lower(): address for address in found if _is_address(address)}.values())


def is_recipient(entry: str) -> bool:
    """Whether a channel may name it: an address, or a role such as `role:approver`."""
    return entry.removeprefix(ROLE) in Role.values if entry.startswith(ROLE) else _is_address(entry)


def _mail(delivery: Delivery, to: Sequence[str], number: int) -> EmailMultiAlternatives:
    sender = settings.DEFAULT_FROM_EMAIL
    domain = parseaddr(sender)[1].rpartition("@")[2]
    suffix = f".{number}" if number else ""
    mail = EmailMultiAlternatives(
        subject=" ".join(delivery.subject.split()),
        body=_text(delivery.body),
        from_email=sender,
        to=to,
        headers={"Message-ID": f"<{delivery.id}{suffix}@{domain}>", "Auto-Submitted": "auto-generated"},
    )
    mail.attach_alternative(_html(delivery.body), "text/html")
    return mail


def _text(messages: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"{message['sentence']}\n  {message.get('link') or ''}\n" for message in messages)


def _html(messages: Sequence[dict[str, Any]]) -> str:
    rows = format_html_join("", "<p>{}</p>", ([_paragraph(message)] for message in messages))
    return format_html('<!doctype html><html lang="en"><body>{}</body></html>', rows)


def _paragraph(message: dict[str, Any]) -> str:
    link = str(message.get("link") or "")
    if not link.startswith(("https://", "http://")):
        return format_html("{}<br>{}", message["sentence"], link)
    return format_html('<a href="{}">{}</a>', link, message["sentence"])


def _is_address(text: str) -> bool:
    try:
        validate_email(text)
    except ValidationError:
        return False
    return True


def _sentence(error: Exception) -> str:
    """Never the server's own words: they may repeat what it was told."""
    where = f"the mail server {settings.EMAIL_HOST}"
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"{where} refuses the user name or password of RECOURSE_EMAIL_URL ({error.smtp_code})"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({str(code) for code, _ in error.recipients.values()})
        return f"{where} refuses every recipient ({', '.join(codes)})"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{where} answered {error.smtp_code}"
    if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"{where} did not answer within {settings.EMAIL_TIMEOUT} s"
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return f"{where} broke the connection off"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return f"{where} does not offer what RECOURSE_EMAIL_URL asks for, such as TLS"
    if isinstance(error, ValueError):
        return "the mail cannot be written: a recipient, the sender or the subject is malformed"
    return f"{where} cannot be reached"
