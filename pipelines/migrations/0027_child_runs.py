import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import pipelines.ids
import pipelines.models.base


class Migration(migrations.Migration):

    dependencies = [
        ('pipelines', '0026_workspace_store'),
    ]

    operations = [
        migrations.CreateModel(
            name='ChildRun',
            fields=[
                ('id', models.UUIDField(default=pipelines.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('epoch', models.PositiveIntegerField(help_text="the stage's, when it was linked")),
                ('on_parent_end', models.CharField(choices=[('cancel', 'Cancel'), ('leave', 'Leave')], max_length=20)),
                ('follow', models.CharField(choices=[('fork', 'Fork'), ('original', 'Original')], max_length=20)),
                ('fingerprint', models.CharField(help_text='SHA-256 of what was asked for, defaults filled in', max_length=64)),
                ('taken_over', models.BooleanField(default=False, help_text='the run that its own was forked from had started it')),
                ('is_current', models.BooleanField(default=True)),
                ('awaited', models.BooleanField(default=False, help_text='the stage waits for it, and holds no worker')),
                ('ending', models.BooleanField(default=False, help_text='the parent has ended, and it is to be cancelled')),
                ('created_at', models.DateTimeField(db_default=pipelines.models.base.RecourseNow())),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='policy',
            name='policy_kind_known',
        ),
        migrations.RemoveConstraint(
            model_name='reconciliationitem',
            name='reconciliation_item_kind_known',
        ),
        migrations.AddField(
            model_name='run',
            name='depth',
            field=models.PositiveSmallIntegerField(db_default=0, default=0, help_text='how many runs stand above it'),
        ),
        migrations.AddField(
            model_name='run',
            name='has_children',
            field=models.BooleanField(db_default=False, default=False, help_text='a stage of it started other runs'),
        ),
        migrations.AddField(
            model_name='run',
            name='parent',
            field=models.ForeignKey(db_constraint=False, db_index=False, help_text='the run whose stage started it, or started what it was forked from; that may be gone', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='children', to='pipelines.run'),
        ),
        migrations.AlterField(
            model_name='policy',
            name='kind',
            field=models.CharField(choices=[('retry', 'Retry'), ('timeout', 'Timeout'), ('rate', 'Rate'), ('concurrency', 'Concurrency'), ('run_retry', 'Run Retry')], max_length=20),
        ),
        migrations.AlterField(
            model_name='reconciliationitem',
            name='kind',
            field=models.CharField(choices=[('running_attempt', 'Running Attempt'), ('uncertain_effect', 'Uncertain Effect'), ('open_effect', 'Open Effect'), ('open_gate', 'Open Gate'), ('awaited_import', 'Awaited Import'), ('process_left', 'Process Left'), ('child_run', 'Child Run')], max_length=30),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('parent__isnull', False)), fields=['parent', '-created_at', '-id'], name='run_of_parent'),
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['retry', 'timeout', 'rate', 'concurrency', 'run_retry'])), name='policy_kind_known'),
        ),
        migrations.AddConstraint(
            model_name='reconciliationitem',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['running_attempt', 'uncertain_effect', 'open_effect', 'open_gate', 'awaited_import', 'process_left', 'child_run'])), name='reconciliation_item_kind_known'),
        ),
        migrations.AddField(
            model_name='childrun',
            name='parent',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='child_links', to='pipelines.run'),
        ),
        migrations.AddField(
            model_name='childrun',
            name='run',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='parent_links', to='pipelines.run'),
        ),
        migrations.AddField(
            model_name='childrun',
            name='stage',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='child_links', to='pipelines.stage'),
        ),
        migrations.AddField(
            model_name='childrun',
            name='started',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='pipelines.run'),
        ),
        migrations.AddIndex(
            model_name='childrun',
            index=models.Index(fields=['parent', '-created_at', '-id'], name='child_run_of_parent'),
        ),
        migrations.AddIndex(
            model_name='childrun',
            index=models.Index(fields=['run'], name='child_run_by_run'),
        ),
        migrations.AddIndex(
            model_name='childrun',
            index=models.Index(fields=['started'], name='child_run_by_started'),
        ),
        migrations.AddIndex(
            model_name='childrun',
            index=models.Index(condition=models.Q(('awaited', True)), fields=['id'], name='child_run_awaited'),
        ),
        migrations.AddIndex(
            model_name='childrun',
            index=models.Index(condition=models.Q(('ending', True)), fields=['id'], name='child_run_ending'),
        ),
        migrations.AddConstraint(
            model_name='childrun',
            constraint=models.UniqueConstraint(condition=models.Q(('is_current', True)), fields=('stage', 'key'), name='child_run_once_per_stage_and_key'),
        ),
        migrations.AddConstraint(
            model_name='childrun',
            constraint=models.CheckConstraint(condition=models.Q(('awaited', False), models.Q(('ending', False), ('is_current', True)), _connector='OR'), name='child_run_awaited_while_current'),
        ),
        migrations.AddConstraint(
            model_name='childrun',
            constraint=models.CheckConstraint(condition=models.Q(('on_parent_end__in', ['cancel', 'leave'])), name='child_run_on_parent_end_known'),
        ),
        migrations.AddConstraint(
            model_name='childrun',
            constraint=models.CheckConstraint(condition=models.Q(('follow__in', ['fork', 'original'])), name='child_run_follow_known'),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='childrun',
            trigger=pgtrigger.compiler.Trigger(name='child_run_kept', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF current_setting('recourse.retention', true) = 'on' THEN RETURN OLD; END IF;\n            RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME\n                USING ERRCODE = 'integrity_constraint_violation';\n        ", hash='72a6e544a4ef14433c799f4dc65eecb95904b3b2', operation='DELETE', pgid='pgtrigger_child_run_kept_34636', table='pipelines_childrun', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='childrun',
            trigger=pgtrigger.compiler.Trigger(name='child_run_not_emptied', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            RAISE EXCEPTION 'rows of % are never removed all at once', TG_TABLE_NAME\n                USING ERRCODE = 'integrity_constraint_violation';\n        ", hash='f63545b0d9d9d4fea343b915d1cead6f2d320b28', level='STATEMENT', operation='TRUNCATE', pgid='pgtrigger_child_run_not_emptied_bdb61', table='pipelines_childrun', when='BEFORE')),
        ),
    ]
