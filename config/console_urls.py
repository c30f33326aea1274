"""The addresses of the console: one line per screen. Every one of them is a GET that reads or a POST that acts."""

from django.urls import path

from approvals.screens import decision_pages as decisions
from approvals.screens import inbox_pages as inbox
from config import account_pages as account
from config import login
from config import oidc_pages as oidc
from pipelines.console import (
    artifact_pages,
    audit_pages,
    blackout_acts,
    blackout_pages,
    key_pages,
    letter_list,
    pipeline_acts,
    pipeline_pages,
    run_list,
    tick_pages,
    trigger_acts,
    trigger_pages,
    worker_pages,
)
from pipelines.console import checkpoint_pages as checkpoints
from pipelines.console import epoch_pages as epochs
from pipelines.console import run_views as runs
from recovery import letter_views as letters
from recovery import views as recovery
from recovery.screens import backfill_pages as backfills
from recovery.screens import bulk_acts, bulk_drafts, bulk_pages
from recovery.screens import effect_pages as effects
from recovery.screens import fork_views as forks
from recovery.screens import operation_pages as operations
from recovery.screens import planner_pages as planner
from recovery.screens import run_sections as sections

app_name = "console"
urlpatterns = [
    path("", run_list.run_list, name="runs"),
    path("login/", login.login, name="login"),
    path("logout/", login.logout, name="logout"),
    path("login/oidc/", oidc.start, name="oidc-login"),
    path("login/oidc/done/", oidc.done, name="oidc-done"),
    path("login/oidc/out/", oidc.out, name="oidc-log-out"),
    path("account/", account.account_page, name="account"),
    path("account/password/", account.password, name="account-password"),
    path("account/connect/", account.connect, name="account-connect"),
    path("account/disconnect/", account.disconnect, name="account-disconnect"),
    path("account/sessions/end/", account.sessions_end, name="sessions-end"),
    path("account/sessions/<uuid:session_id>/end/", account.session_end, name="session-end"),
    path("account/tokens/new/", account.token_new, name="token-new"),
    path("account/tokens/<uuid:token_id>/revoke/", account.token_revoke, name="token-revoke"),
    path("members/", account.members, name="members"),
    path("members/<int:member_id>/log-out/", account.member_log_out, name="member-log-out"),
    path("workspaces/", login.workspaces, name="workspaces"),
    path("preferences/", login.preferences, name="preferences"),
    path("runs/<uuid:run_id>/", runs.run, name="run"),
    path("runs/<uuid:run_id>/live/", runs.run_live, name="run-live"),
    path("runs/<uuid:run_id>/events/", runs.run_events, name="run-events"),
    path("runs/<uuid:run_id>/timeline/", runs.run_timeline, name="run-timeline"),
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
    path("whole/<slug:kind>/<uuid:text_id>/", runs.whole_text, name="whole"),
    path("attempts/<uuid:attempt_id>/", runs.attempt, name="attempt"),
    path("stages/<uuid:stage_id>/changes/", epochs.stage_changes, name="stage-changes"),
    path("stages/<uuid:stage_id>/retry/", recovery.retry, name="retry"),
    path("stages/<uuid:stage_id>/skip/", recovery.skip, name="skip"),
    path("stages/<uuid:stage_id>/reconcile/", effects.reconcile_stage, name="reconcile"),
    path("operations/", operations.operation_list, name="operations"),
    path("operations/<uuid:operation_id>/", operations.operation_page, name="operation"),
    path("bulk/", bulk_pages.bulk_list, name="bulk-list"),
    path("bulk/new/", bulk_drafts.bulk_new, name="bulk-new"),
    path("bulk/<uuid:bulk_id>/", bulk_pages.bulk_page, name="bulk"),
    path("bulk/<uuid:bulk_id>/targets/", bulk_pages.bulk_items, name="bulk-items"),
    path("bulk/<uuid:bulk_id>/start/", bulk_drafts.bulk_start, name="bulk-start"),
    path("bulk/<uuid:bulk_id>/pause/", bulk_acts.pause, name="bulk-pause"),
    path("bulk/<uuid:bulk_id>/resume/", bulk_acts.resume, name="bulk-resume"),
    path("bulk/<uuid:bulk_id>/abort/", bulk_acts.abort, name="bulk-abort"),
    path("approvals/", inbox.approvals, name="approvals"),
    path("approvals/waiting/", inbox.waiting, name="waiting"),
    path("approvals/<uuid:item_id>/", decisions.approval, name="approval"),
    path("approvals/<uuid:item_id>/approve/", decisions.approve, name="approval-approve"),
    path("approvals/<uuid:item_id>/reject/", decisions.reject, name="approval-reject"),
    path("approvals/<uuid:item_id>/withdraw/", decisions.withdraw, name="approval-withdraw"),
    path("dead-letters/", letter_list.dead_letter_list, name="dead-letters"),
    path("dead-letters/<uuid:letter_id>/acknowledge/", letters.acknowledge, name="acknowledge"),
    path("dead-letters/<uuid:letter_id>/redrive/", letters.redrive, name="redrive"),
    path("dead-letters/<uuid:letter_id>/discard/", letters.discard, name="discard"),
    path("triggers/", trigger_pages.trigger_list, name="triggers"),
    path("triggers/new/", trigger_acts.trigger_new, name="trigger-new"),
    path("triggers/preview/", trigger_acts.schedule_preview, name="schedule-preview"),
    path("triggers/<uuid:trigger_id>/", trigger_pages.trigger_page, name="trigger"),
    path("triggers/<uuid:trigger_id>/ticks/<uuid:tick_id>/", tick_pages.tick_page, name="tick"),
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
    path("audit/", audit_pages.audit_list, name="audit"),
    path("audit/export/", audit_pages.audit_export_view, name="audit-export"),
    path("audit/<uuid:event_id>/", audit_pages.audit_event, name="audit-event"),
    path("signing-keys/", key_pages.key_list, name="signing-keys"),
    path("signing-keys/rotate/", key_pages.rotate, name="key-rotate"),
    path("signing-keys/<str:key_id>/revoke/", key_pages.revoke, name="key-revoke"),
    path("pipelines/", pipeline_pages.pipeline_list, name="pipelines"),
    path("pipelines/new/", pipeline_acts.pipeline_new, name="pipeline-new"),
    path("pipelines/releases/<uuid:release_id>/", pipeline_pages.release_page, name="release"),
    path("pipelines/releases/<uuid:release_id>/activate/", pipeline_acts.release_activate, name="release-activate"),
    path("pipelines/<uuid:pipeline_id>/", pipeline_pages.pipeline_page, name="pipeline"),
    path("pipelines/<uuid:pipeline_id>/change/", pipeline_acts.pipeline_change, name="pipeline-change"),
    path("pipelines/<uuid:pipeline_id>/release/", pipeline_acts.release_new, name="release-new"),
    path("artifacts/", artifact_pages.artifact_list, name="artifacts"),
    path("artifacts/new/", artifact_pages.baseline_new, name="baseline-new"),
    path("artifacts/<uuid:artifact_id>/content/", artifact_pages.artifact_content, name="artifact-content"),
    path("workers/", worker_pages.worker_list, name="workers"),
]
