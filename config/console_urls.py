"""The addresses of the console: one line per screen. Every one of them is a GET that reads or a POST that acts."""

from django.urls import path

from approvals.screens import decision_pages as decisions
from approvals.screens import inbox_pages as inbox
from config import login
from pipelines.console import blackout_acts, blackout_pages, trigger_acts, trigger_pages
from pipelines.console import checkpoint_pages as checkpoints
from pipelines.console import epoch_pages as epochs
from pipelines.console import views as pipelines
from recovery import letter_views as letters
from recovery import views as recovery
from recovery.screens import backfill_pages as backfills
from recovery.screens import effect_pages as effects
from recovery.screens import fork_views as forks
from recovery.screens import operation_pages as operations
from recovery.screens import planner_pages as planner
from recovery.screens import run_sections as sections

app_name = "console"
urlpatterns = [
    path("", pipelines.run_list, name="runs"),
    path("login/", login.login, name="login"),
    path("logout/", login.logout, name="logout"),
    path("workspaces/", login.workspaces, name="workspaces"),
    path("preferences/", login.preferences, name="preferences"),
    path("runs/<uuid:run_id>/", pipelines.run_page_view, name="run"),
    path("runs/<uuid:run_id>/live/", pipelines.run_live, name="run-live"),
    path("runs/<uuid:run_id>/events/", pipelines.run_events, name="run-events"),
    path("runs/<uuid:run_id>/checkpoints/", checkpoints.checkpoint_list, name="checkpoints"),
    path("runs/<uuid:run_id>/checkpoints/changes/", checkpoints.checkpoint_changes, name="checkpoint-changes"),
    path("runs/<uuid:run_id>/checkpoints/<int:sequence>/", checkpoints.checkpoint_page, name="checkpoint"),
    path("runs/<uuid:run_id>/pause/", recovery.pause, name="pause"),
    path("runs/<uuid:run_id>/resume/", recovery.resume, name="resume"),
    path("runs/<uuid:run_id>/cancel/", recovery.cancel, name="cancel"),
    path("runs/<uuid:run_id>/rerun/", forks.rerun, name="rerun"),
    path("runs/<uuid:run_id>/replay/", forks.replay, name="replay"),
    path("runs/<uuid:run_id>/effects/", effects.effect_list, name="effects"),
    path("runs/<uuid:run_id>/evidence/", sections.evidence, name="evidence-graph"),
    path("effects/<uuid:effect_id>/", effects.effect_page, name="effect"),
    path("effects/<uuid:effect_id>/evidence/", effects.add_summary, name="effect-evidence"),
    path("effects/<uuid:effect_id>/reconcile/", effects.reconcile_effect, name="effect-reconcile"),
    path("attempts/<uuid:attempt_id>/", pipelines.attempt_page, name="attempt"),
    path("stages/<uuid:stage_id>/changes/", epochs.stage_changes, name="stage-changes"),
    path("stages/<uuid:stage_id>/retry/", recovery.retry, name="retry"),
    path("stages/<uuid:stage_id>/skip/", recovery.skip, name="skip"),
    path("stages/<uuid:stage_id>/reconcile/", effects.reconcile_stage, name="reconcile"),
    path("operations/", operations.operation_list, name="operations"),
    path("operations/<uuid:operation_id>/", operations.operation_page, name="operation"),
    path("approvals/", inbox.approvals, name="approvals"),
    path("approvals/waiting/", inbox.waiting, name="waiting"),
    path("approvals/<uuid:item_id>/", decisions.approval, name="approval"),
    path("approvals/<uuid:item_id>/approve/", decisions.approve, name="approval-approve"),
    path("approvals/<uuid:item_id>/reject/", decisions.reject, name="approval-reject"),
    path("approvals/<uuid:item_id>/withdraw/", decisions.withdraw, name="approval-withdraw"),
    path("dead-letters/", pipelines.dead_letter_list, name="dead-letters"),
    path("dead-letters/<uuid:letter_id>/acknowledge/", letters.acknowledge, name="acknowledge"),
    path("dead-letters/<uuid:letter_id>/redrive/", letters.redrive, name="redrive"),
    path("dead-letters/<uuid:letter_id>/discard/", letters.discard, name="discard"),
    path("triggers/", trigger_pages.trigger_list, name="triggers"),
    path("triggers/new/", trigger_acts.trigger_new, name="trigger-new"),
    path("triggers/preview/", trigger_acts.schedule_preview, name="schedule-preview"),
    path("triggers/<uuid:trigger_id>/", trigger_pages.trigger_page, name="trigger"),
    path("triggers/<uuid:trigger_id>/change/", trigger_acts.trigger_change, name="trigger-change"),
    path("triggers/<uuid:trigger_id>/enable/", trigger_acts.trigger_enable, name="trigger-enable"),
    path("triggers/<uuid:trigger_id>/disable/", trigger_acts.trigger_disable, name="trigger-disable"),
    path("triggers/<uuid:trigger_id>/backfill/", planner.planner, name="backfill-planner"),
    path("triggers/<uuid:trigger_id>/backfill/start/", planner.start, name="backfill-start"),
    path("backfills/", backfills.backfill_list, name="backfills"),
    path("backfills/<uuid:backfill_id>/", backfills.backfill_page, name="backfill"),
    path("backfills/<uuid:backfill_id>/ticks/", backfills.backfill_ticks, name="backfill-ticks"),
    path("backfills/<uuid:backfill_id>/pause/", backfills.pause, name="backfill-pause"),
    path("backfills/<uuid:backfill_id>/resume/", backfills.resume, name="backfill-resume"),
    path("backfills/<uuid:backfill_id>/cancel/", backfills.cancel, name="backfill-cancel"),
    path("blackouts/", blackout_pages.blackout_list, name="blackouts"),
    path("blackouts/new/", blackout_acts.blackout_new, name="blackout-new"),
    path("blackouts/freeze/", blackout_acts.freeze, name="freeze"),
    path("blackouts/lift/", blackout_acts.freeze_lift, name="freeze-lift"),
    path("blackouts/<uuid:blackout_id>/change/", blackout_acts.blackout_change, name="blackout-change"),
    path("workers/", pipelines.worker_list, name="workers"),
]
