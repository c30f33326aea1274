"""The admin site's form of a policy: its match and rule as JSON, checked as the API checks them (P45)."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db.models import Value
from django.db.models.functions import Lower

from pipelines.api import operations_serializers as wire
from pipelines.api.shapes import Wrong
from pipelines.models import Policy


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg] # generic for the type checker only
    """What the API would refuse is refused here, with the same words, beside the field that it is about."""

    match = forms.JSONField(
        required=False,
        initial=dict,
        widget=AdminTextareaWidget,
        help_text="any of pipeline, stage, handler, environment, and of a retry error_codes; none: every stage. "
        "Of a run retry any of pipeline, environment, error_codes; none: every run that fails",
    )

    class Meta:
        model = Policy
        fields = ("workspace", "name", "kind", "match", "rule", "status")
        help_texts = {
            "rule": 'of a retry such as {"max_retries": 3, "retry_interval": 30}; of a timeout {"seconds": 60}; '
            'of a rate {"count": 50, "per_seconds": 1}; of a concurrency {"max_active": 3}; of a run retry '
            '{"mode": "resume", "max_retries": 3, "retry_interval": 60, "backoff": "exponential"}',
        }

    def clean(self) -> dict[str, Any]:
        clean: dict[str, Any] = super().clean() or self.cleaned_data
        clean["match"] = clean.get("match") or {}
        if self.errors:
            return clean  # what could not be read is to be told first
        names = ("name", "kind", "match", "rule", "status")
        checked = wire.PolicyRequest.check({name: clean.get(name, getattr(self.instance, name)) for name in names})
        if type(checked) is Wrong:
            for place, message in checked.problems:
                name, _, below = place.partition(".")
                self.add_error(name if name in self.fields else None, f"{below}: {message}" if below else message)
        elif self._is_taken(clean):
            self.add_error("name", "another policy has this name")
        return clean

    def _is_taken(self, clean: dict[str, Any]) -> bool:
        workspace = clean.get("workspace") or self.instance.workspace
        others = Policy.objects.filter(workspace=workspace).exclude(pk=self.instance.pk)
        return bool(others.annotate(lower=Lower("name")).filter(lower=Lower(Value(clean["name"]))).exists())

    def _get_validation_exclusions(self) -> set[str]:
        """Without the name, whose being taken is told beside it."""
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc] # Django has it
        return excluded | {"name"}
