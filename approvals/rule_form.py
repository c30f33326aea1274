"""The admin site's form of an approval rule: kinds to tick, slugs with commas, and a length of time in words."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError

from approvals import gates, rule_rows
from approvals.models import ApprovalRule
from approvals.models.rules import LONGEST_EXPIRY
from approvals.rules import DEFAULT_EXPIRY, UNITS, in_words

_PART = re.compile(r"(\d{1,9})\s*(days?|d|hours?|h|minutes?|min|m|seconds?|s)\s*")


class LengthField(forms.Field):
    """A length of time as people write it: "8 hours", "1 day 12 hours", "90m". Its value is in seconds."""

    def prepare_value(self, value: Any) -> Any:
        return in_words(value) if isinstance(value, int) else value

    def to_python(self, value: Any) -> int | None:
        text = str(value or "").strip().lower()
        if not text:
            return None
        seconds, rest = 0, text
        while rest:
            part = _PART.match(rest)
            if part is None:
                raise ValidationError("say it with units, such as 8 hours, 90 minutes or 1 day 12 hours")
            unit = next(name for name in UNITS if name.startswith(part[2][:1]))
            seconds, rest = seconds + int(part[1]) * UNITS[unit], rest[part.end() :]
        if not 1 <= seconds <= LONGEST_EXPIRY:
            raise ValidationError(f"must be from 1 second to {in_words(LONGEST_EXPIRY)}")
        return seconds

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != initial)
        except ValidationError:
            return True


class RuleForm(forms.ModelForm):  # type: ignore[type-arg] # generic for the type checker only
    """What names something unknown is refused, saying what; so is a size without what is counted, or the reverse."""

    kinds = forms.MultipleChoiceField(
        choices=lambda: [(kind, kind) for kind in gates.kinds()],
        widget=forms.CheckboxSelectMultiple,
        help_text="pause, resume, acknowledge and reconcile wait for nobody",
    )
    environments = SimpleArrayField(
        forms.CharField(max_length=100),
        required=False,
        widget=AdminTextInputWidget,
        help_text="slugs, with commas between them; protected stands for those that are; none: all",
    )
    pipelines = SimpleArrayField(
        forms.CharField(max_length=255),
        required=False,
        widget=AdminTextInputWidget,
        help_text="slugs, with commas between them; none: all",
    )
    at_least = forms.IntegerField(
        required=False, min_value=1, max_value=rule_rows.LARGEST_SIZE, help_text="so many or more of what is counted"
    )
    expires_in = LengthField(
        required=False, help_text=f"such as 8 hours or 1 day 12 hours; blank: {in_words(DEFAULT_EXPIRY)}"
    )

    class Meta:
        model = ApprovalRule
        fields = ("workspace", "name", *rule_rows.FIELDS[1:], "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance.counted:
            self.initial["at_least"] = None

    def clean(self) -> dict[str, Any]:
        clean: dict[str, Any] = super().clean() or self.cleaned_data
        workspace_id = self.instance.workspace_id or getattr(clean.get("workspace"), "pk", None)
        counted, at_least = clean.get("counted"), clean.get("at_least")
        if counted and at_least is None and "at_least" in clean:
            self.add_error("at_least", f"must say how many {counted}")
        if "at_least" in clean:
            clean["at_least"] = 1 if at_least is None else at_least
        if workspace_id is None:
            return clean  # which one is to be told first
        rule_rows.hold(workspace_id)
        own = self.instance.pk if self.instance.workspace_id else None
        for name, messages in rule_rows.problems(workspace_id, clean, own).items():
            self.add_error(name, messages)
        return clean
