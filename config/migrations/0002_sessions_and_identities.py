import django.db.models.deletion
import pipelines.ids
import pipelines.models.base
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('config', '0001_failed_log_ins'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # Django's own sessions, whose rows held the cookies themselves; everybody logs in anew.
        migrations.RunSQL('DROP TABLE IF EXISTS django_session', migrations.RunSQL.noop),
        migrations.CreateModel(
            name='Session',
            fields=[
                ('id', models.UUIDField(default=pipelines.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('digest', models.BinaryField(max_length=32, unique=True)),
                ('data', models.TextField()),
                ('seen_at', models.DateTimeField(db_default=pipelines.models.base.RecourseNow())),
                ('expires_at', models.DateTimeField(db_index=True)),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='sessions', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(max_length=255)),
                ('subject', models.CharField(max_length=255)),
                ('since', models.DateTimeField(db_default=pipelines.models.base.RecourseNow())),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'identities',
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='identity_of_one_account'), models.UniqueConstraint(fields=('user', 'issuer'), name='identity_one_per_issuer')],
            },
        ),
    ]
