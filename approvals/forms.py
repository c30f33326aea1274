"""The admin site's forms of channels and notification rules.

A channel's address and secret go in and never come out: the fields are always empty, and blank keeps what is set. What
is wrong is said at its field, and nothing is kept.
"""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.contrib.postgres.forms import SimpleArrayField
from django.db.models import Value
from django.db.models.functions import Lower

from approvals import rule_rows
from approvals.models import Channel, ChannelKind, NotificationRule
from approvals.models.notifications import LONGEST_DIGEST
from approvals.notifications import channels, mail
from pipelines.errors import Refusal
from pipelines.states import NoticeKind

MOST_RECIPIENTS = 100
WIDE = {"class": "vTextField"}


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg] # generic for the type checker only
    """`made` is the secret that was made here, to be shown once. The kind of a channel stays as it is."""

    recipients = SimpleArrayField(
        forms.CharField(max_length=255),
        required=False,
        max_length=MOST_RECIPIENTS,
        widget=forms.TextInput(attrs=WIDE),
        help_text="of e-mail, with commas between them: addresses, or roles such as role:approver",
    )
    new_address = forms.CharField(
        required=False,
        widget=forms.TextInput(attrs={**WIDE, "autocomplete": "off"}),
        help_text="of a webhook, such as https://hooks.example.org/path: kept encrypted and never shown again;"
        " blank keeps what is set",
    )
    new_secret = forms.CharField(
        required=False,
        widget=forms.TextInput(attrs={**WIDE, "autocomplete": "off"}),
        help_text="of a signed webhook, if the receiver has one already; blank keeps what is set",
    )
    make_secret = forms.BooleanField(
        required=False, label="Make a new secret", help_text="of a signed webhook; the first one is made by itself"
    )

    class Meta:
        model = Channel
        fields = ("workspace", "name", "kind", "recipients", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made = ""

    def clean(self) -> dict[str, Any]:
        clean: dict[str, Any] = super().clean() or self.cleaned_data
        kind = clean.get("kind") or self.instance.kind
        _hold_to_one_name(self, clean)
        if kind in ChannelKind.values and "recipients" in clean:
            clean["recipients"] = list(dict.fromkeys(clean["recipients"]))
            (self._clean_mail if kind == ChannelKind.EMAIL else self._clean_webhook)(clean, kind)
        return clean

    def _clean_mail(self, clean: dict[str, Any], kind: str) -> None:
        self._hold_blank(clean, "new_address", "new_secret", "make_secret", says="only webhooks have one")
        wrong = [entry for entry in clean["recipients"] if not mail.is_recipient(entry)]
        if wrong:
            told = ", ".join(repr(entry) for entry in wrong)
            self.add_error("recipients", f"neither an e-mail address nor a role such as role:approver: {told}")
        elif not clean["recipients"]:
            self.add_error("recipients", "must name at least one address or role")

    def _clean_webhook(self, clean: dict[str, Any], kind: str) -> None:
        self._hold_blank(clean, "recipients", says="only e-mail has them")
        if kind == ChannelKind.SLACK:
            self._hold_blank(clean, "new_secret", "make_secret", says="only a signed webhook has one")
        elif clean.get("new_secret") and clean.get("make_secret"):
            self.add_error("make_secret", "either give a secret or have one made")
        if clean.get("new_address"):
            self._set("address", clean["new_address"])
        elif self.instance.address is None and "new_address" in clean:
            self.add_error("new_address", "must be given")
        if kind == ChannelKind.WEBHOOK and not self.errors:
            if clean.get("new_secret"):
                self._set("secret", clean["new_secret"])
            elif clean.get("make_secret") or self.instance.secret is None:
                self.made = channels.set_secret(self.instance)

    def _set(self, name: str, text: str) -> None:
        try:
            if name == "address":
                channels.set_address(self.instance, text)
            else:
                channels.set_secret(self.instance, text)
        except Refusal as refusal:
            self.add_error(f"new_{name}", refusal.errors[name] if refusal.errors else refusal.detail)

    def _hold_blank(self, clean: dict[str, Any], *names: str, says: str) -> None:
        for name in names:
            if clean.get(name):
                self.add_error(name, f"must be left out: {says}")


class NotificationRuleForm(forms.ModelForm):  # type: ignore[type-arg] # as above
    """What names something that the workspace does not have is refused, saying what."""

    kinds = forms.MultipleChoiceField(
        choices=[(kind, kind.replace("_", " ")) for kind in NoticeKind.values],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text="none: all",
    )
    environments = SimpleArrayField(
        forms.CharField(max_length=100),
        required=False,
        widget=forms.TextInput(attrs=WIDE),
        help_text="slugs, with commas between them; protected stands for those that are; none: all",
    )
    pipelines = SimpleArrayField(
        forms.CharField(max_length=255),
        required=False,
        widget=forms.TextInput(attrs=WIDE),
        help_text="slugs, with commas between them; none: all",
    )
    digest_seconds = forms.IntegerField(
        min_value=0,
        max_value=LONGEST_DIGEST,
        initial=60,
        help_text="how long messages are gathered to go out as one; 0 sends each by itself",
    )

    class Meta:
        model = NotificationRule
        fields = ("workspace", "name", "channel", "kinds", "environments", "pipelines", "digest_seconds", "enabled")

    def clean(self) -> dict[str, Any]:
        clean: dict[str, Any] = super().clean() or self.cleaned_data
        workspace_id = _hold_to_one_name(self, clean)
        for name in ("environments", "pipelines"):
            clean[name] = list(dict.fromkeys(clean.get(name, ())))
        if workspace_id is None:
            return clean
        if clean.get("channel") and clean["channel"].workspace_id != workspace_id:
            self.add_error("channel", "is one of another workspace")
        for name, found in rule_rows.unknown_places(workspace_id, clean["environments"], clean["pipelines"]).items():
            self.add_error(name, found)
        return clean


def _hold_to_one_name(form: Any, clean: dict[str, Any]) -> uuid.UUID | None:
    """The workspace, if it is known; its changes happen one at a time from here on, so that a name stays free."""
    workspace = clean.get("workspace")
    workspace_id: uuid.UUID | None = workspace.pk if workspace else form.instance.workspace_id
    if workspace_id is None or "name" not in clean:
        return workspace_id
    rule_rows.hold(workspace_id)
    model = form._meta.model  # noqa: SLF001 - of a form of this module
    others = model.objects.filter(workspace_id=workspace_id).exclude(pk=form.instance.pk)
    if others.annotate(lower=Lower("name")).filter(lower=Lower(Value(clean["name"]))).exists():
        form.add_error("name", f"another {model._meta.verbose_name} has this name")  # noqa: SLF001 - Django's way
    return workspace_id
