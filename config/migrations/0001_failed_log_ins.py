import pipelines.models.base
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [('pipelines', '0001_clock')]

    operations = [
        migrations.CreateModel(
            name='FailedLogIn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('account', models.BinaryField(max_length=32)),
                ('address', models.CharField(max_length=64)),
                ('at', models.DateTimeField(db_default=pipelines.models.base.RecourseNow())),
            ],
            options={
                'verbose_name': 'failed log-in',
                'indexes': [models.Index(fields=['address', 'at'], name='failed_log_in_of_address'), models.Index(fields=['at'], name='failed_log_in_at')],
            },
        ),
    ]
