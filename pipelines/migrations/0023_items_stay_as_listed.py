import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models


class Migration(migrations.Migration):
    """What may still go on outside stays as it was listed, is settled with a note, and goes only with its run."""

    dependencies = [("pipelines", "0022_recipients")]
    operations = [
        pgtrigger.migrations.AddTrigger(
            model_name='reconciliationitem',
            trigger=pgtrigger.compiler.Trigger(name='reconciliation_item_says_the_same', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.run_id <> NEW.run_id OR OLD.workspace_id <> NEW.workspace_id OR OLD.stage_id <> NEW.stage_id OR OLD.attempt_number <> NEW.attempt_number OR OLD.kind <> NEW.kind OR OLD.subject IS DISTINCT FROM NEW.subject OR OLD.detail <> NEW.detail OR OLD.opened_at <> NEW.opened_at)', func="RAISE EXCEPTION 'what was listed stays as it was listed' USING ERRCODE = 'integrity_constraint_violation';", hash='5e6046baf495bae832ec28ae24ea037939ec0108', operation='UPDATE', pgid='pgtrigger_reconciliation_item_says_the_same_b1e11', table='pipelines_reconciliationitem', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='reconciliationitem',
            trigger=pgtrigger.compiler.Trigger(name='reconciliation_item_kept', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF current_setting('recourse.retention', true) = 'on' THEN RETURN OLD; END IF;\n            RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME\n                USING ERRCODE = 'integrity_constraint_violation';\n        ", hash='12823750ca10196580e6fd943f313fd46f5de783', operation='DELETE', pgid='pgtrigger_reconciliation_item_kept_1b50f', table='pipelines_reconciliationitem', when='BEFORE')),
        ),
        migrations.AddConstraint(
            model_name='reconciliationitem',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('note', ''), ('resolved_at__isnull', True), ('resolved_by__isnull', True), ('resolved_name', '')), models.Q(('resolved_at__isnull', False), models.Q(('note', ''), _negated=True)), _connector='OR'), name='reconciliation_item_settled_with_a_note'),
        ),
    ]
