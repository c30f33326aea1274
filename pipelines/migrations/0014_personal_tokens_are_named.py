from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('pipelines', '0013_audit_lists_from_indexes'),
    ]

    operations = [
        migrations.AddField(
            model_name='personaltoken',
            name='name',
            field=models.CharField(blank=True, max_length=100),
        ),
        migrations.AddField(
            model_name='personaltoken',
            name='last_used_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
