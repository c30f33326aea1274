"""The admin site's form of a trigger. What it takes is what `pipelines.triggers` takes; that is what keeps it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from pipelines import tick_inputs, triggers
from pipelines.audit import LONGEST_REASON
from pipelines.errors import Refusal
from pipelines.models import Trigger
from pipelines.schedules import Schedule

MAY_BE_BLANK = ("name", "input", "deadline_seconds", "starts_at", "ends_at")
FROM_BLANK: dict[str, Any] = {"input": {}, "name": ""}


class TriggerForm(forms.ModelForm):  # type: ignore[type-arg] # generic for the type checker only
    """What cannot be meant is refused at its field, in the words of the API."""

    reason = forms.CharField(
        required=False,
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="kept with the change, for whoever looks later",
    )

    class Meta:
        model = Trigger
        fields = ("workspace", *triggers.PLACE, *triggers.SETTINGS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in MAY_BE_BLANK:
            if name in self.fields:
                self.fields[name].required = False

    def clean(self) -> dict[str, Any]:
        clean: dict[str, Any] = super().clean() or self.cleaned_data
        for name, blank in FROM_BLANK.items():
            if name in clean and clean[name] in (None, ""):
                clean[name] = blank
        self._check_place(clean)
        for name, value in self.settings().items():
            if problem := triggers.problem_of(name, value):
                self.add_error(name, problem)
        start, end = clean.get("starts_at"), clean.get("ends_at")
        if start and end and end <= start:
            self.add_error("ends_at", "must be after starts_at")
        if all(name in clean for name in triggers.SCHEDULE):
            self._refused_as(lambda: Schedule.read(*(clean[name] for name in triggers.SCHEDULE)))
        if "input" in clean:
            words = {"timezone": clean.get("timezone") or "UTC", "trigger_name": clean.get("name", "")}
            self._refused_as(lambda: tick_inputs.check(clean["input"], **words))
        return clean

    def settings(self) -> dict[str, Any]:
        """What the form says of the trigger itself, as far as it could be read; a blank name says nothing."""
        read = {name: self.cleaned_data[name] for name in triggers.SETTINGS if name in self.cleaned_data}
        return {name: value for name, value in read.items() if name != "name" or value}

    def _check_place(self, clean: dict[str, Any]) -> None:
        workspace = clean.get("workspace")
        for name in triggers.PLACE:
            if workspace and clean.get(name) and clean[name].workspace_id != workspace.pk:
                self.add_error(name, f"is none of the workspace {workspace.slug}")

    def _refused_as(self, check: Any) -> None:
        try:
            check()
        except Refusal as refusal:
            for name, messages in refusal.errors.items():
                self.add_error(name if name in self.fields else None, ValidationError(messages))
