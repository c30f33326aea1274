from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0029_decisions_are_never_set_back")]

    operations = [
        migrations.AddField(
            model_name="release",
            name="source_digest",
            field=models.CharField(
                blank=True,
                db_default="",
                editable=False,
                help_text="of the code that it was deployed with",
                max_length=64,
            ),
        ),
    ]
