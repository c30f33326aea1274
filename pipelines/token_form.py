"""The admin site's form for a token of one's own: says by field what `credentials.issue_token` would refuse."""

from __future__ import annotations

from datetime import datetime

from django import forms

from pipelines.credentials import checked_expiry
from pipelines.errors import Refusal
from pipelines.models import PersonalToken


class TokenForm(forms.ModelForm):  # type: ignore[type-arg] # generic for the type checker only
    class Meta:
        model = PersonalToken
        fields = ("name", "workspace", "expires_at")
        help_texts = {"expires_at": "At most 366 days ahead; left out, it ends then."}

    def clean_expires_at(self) -> datetime:
        try:
            return checked_expiry(self.cleaned_data["expires_at"])
        except Refusal as refusal:
            raise forms.ValidationError(refusal.errors["expires_at"]) from refusal
