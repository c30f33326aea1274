"""Expressions and zones: what is refused and with which words, and the sentence for each that is taken."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipelines import cron, zones
from pipelines.errors import Refusal
from pipelines.schedules import Gap, Overlap, Rule, Schedule
from tests.pipelines import schedule_oracle as oracle


def refused(expression: object, timezone: object = "UTC") -> Refusal:
    with pytest.raises(Refusal) as caught:
        Schedule.read(expression, timezone)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("expression", "field", "says"),
    [
        ("60 * * * *", "minute", "numbers from 0 to 59"),
        ("0 24 * * *", "hour", "numbers from 0 to 23"),
        ("0 0 0 * *", "day of month", "numbers from 1 to 31, L for the last day"),
        ("0 0 32 * *", "day of month", "numbers from 1 to 31, L for the last day"),
        ("0 0 LW * *", "day of month", "LW is not allowed"),
        ("0 0 L/2 * *", "day of month", "L/2 is not allowed"),
        ("0 0 1-L * *", "day of month", "1-L is not allowed"),
        ("0 0 1 13 *", "month", "numbers from 1 to 12, names (jan)"),
        ("0 0 1 janu *", "month", "janu is not allowed"),
        ("0 0 * * 8", "day of week", "numbers from 0 to 7, names (mon)"),
        ("0 0 * * mon#6", "day of week", "mon#6 is not allowed"),
        ("0 0 * * mon#0", "day of week", "mon#1 to mon#5"),
        ("0 0 * * mon-fri#2", "day of week", "mon-fri#2 is not allowed"),
        ("0 0 * * L", "day of week", "friL for the last"),
        ("0 0 * * xyzL", "day of week", "xyzL is not allowed"),
        ("0 0 * * jan", "day of week", "jan is not allowed"),
        ("0 0 ? * *", "day of month", "? is not allowed"),
        ("*-5 * * * *", "minute", "*-5 is not allowed"),
        ("-1 * * * *", "minute", "-1 is not allowed"),
        ("1.5 * * * *", "minute", "1.5 is not allowed"),
        ("H * * * *", "minute", "H is not allowed"),
        ("1,,2 * * * *", "minute", "nothing is not allowed"),
        (", * * * *", "minute", "nothing is not allowed"),
        ("*/ * * * *", "minute", "*/ is not allowed"),
        ("*/0 * * * *", "minute", "the step of */0 is not from 1 to 60"),
        ("*/61 * * * *", "minute", "the step of */61 is not from 1 to 60"),
        ("0 */25 * * *", "hour", "is not from 1 to 24"),
        ("0 0 * * */8", "day of week", "is not from 1 to 7"),
        ("50-10 * * * *", "minute", "the range 50-10 does not rise"),
        ("0 0 * * fri-mon", "day of week", "the range fri-mon does not rise; write it as two"),
        ("0 0 * nov-feb *", "month", "the range nov-feb does not rise"),
        ("9" * 150 + " * * * *", "minute", "is not allowed"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field_and_what_is_allowed(expression: str, field: str, says: str) -> None:
    """Also what cronsim would take, and read otherwise than it is meant."""
    refusal = refused(expression)
    assert (refusal.code, refusal.status, list(refusal.errors)) == ("cron_invalid", 422, ["cron"])
    assert refusal.errors["cron"] == [refusal.detail]
    assert refusal.detail.startswith(f"{field}: ")
    assert says in refusal.detail


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "five fields (minute, hour, day of month, month, day of week), not 0"),
        ("* * * *", "not 4"),
        ("0 0 * * * *", "not 6; there are none for seconds or years"),
        ("@daily", "write 0 0 * * *"),
        ("@Hourly", "write 0 * * * *"),
        ("@reboot", "a schedule has five fields"),
        ("* " * 101, "at most 200 characters, not 202"),
        ("٣ * * * *", "ASCII"),
        ("0 0 * * frı", "ASCII"),
        ("0 0 * * *\x00", "ASCII"),
        ("0 0 * *\n*", "ASCII"),
        (None, "a text of five fields"),
        (5, "a text of five fields"),
        (["*"] * 5, "a text of five fields"),
    ],
)
def test_what_is_no_expression_at_all_is_refused(expression: object, says: str) -> None:
    refusal = refused(expression)
    assert (refusal.code, list(refusal.errors)) == ("cron_invalid", ["cron"])
    assert says in refusal.detail


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 30 2 *",
        "0 0 30-31 2 *",
        "0 0 31 4 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 31 4-6/2 *",
        "0 0 30 2 */2",  # a star restricts nothing, so both must hold
        "0 0 */28 2 mon#2",  # the 29th is never a second Monday
        "0 0 */30 2 tue#2,friL",  # leaves the 1st, which is neither
    ],
)
def test_what_never_happens_is_refused_when_it_is_read(expression: str) -> None:
    assert "never happens" in refused(expression).detail


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "0 0 30 2 mon", "0 0 31 4,5 *", "0 0 * 2 mon#5", "0 0 29 2 */7"])
def test_what_is_only_rare_is_taken(expression: str) -> None:
    assert Schedule.read(expression, "UTC").cron == expression


def test_what_never_happens_is_exactly_what_no_day_of_28_years_matches() -> None:
    """Both ways: nothing possible is refused, nothing impossible taken."""
    dice, never = random.Random(72), 0
    for _ in range(300):
        days = dice.sample(["28", "29", "30", "31", "*/28", "*/29", "*/30", "L"], 2)
        weekday = dice.choice(["*", "*/7", "mon#2", "mon#5", "*/3", "friL"])
        text = f"0 0 {dice.choice([days[0], ','.join(days)])} {dice.choice(['2', '4', '2,4', '1'])} {weekday}"
        possible = oracle.Expression.read(text).ever()
        never += not possible
        if possible:
            Schedule.read(text, "UTC")
        else:
            assert "never happens" in refused(text).detail
    assert never > 20


def test_blanks_and_case_do_not_matter() -> None:
    one = cron.read("  0,30\t8-16/2   l JAN-mar Mon-Fri,SUNl ")
    other = cron.read("0,30 8-16/2 L 1-3 1-5,0L")
    assert one.text == "0,30 8-16/2 l JAN-mar Mon-Fri,SUNl"
    assert (one.times, one.months, dict(one.days)) == (other.times, other.months, dict(other.days))


def test_the_longest_expression_has_200_characters() -> None:
    longest = "0" * 192 + " * * * *"
    assert Schedule.read(longest, "UTC").cron == longest
    assert "at most 200" in refused("0" + longest).detail


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("europe/berlin", "'europe/berlin'. Did you mean Europe/Berlin?"),
        ("Berlin", "Did you mean Europe/Berlin?"),
        ("New York", "Did you mean America/New_York?"),
        ("Europe/Berlni", "Europe/Berlin"),
        (" UTC", "Did you mean UTC?"),
        ("utc", "Did you mean UTC?"),
        ("Mars/Olympus_Mons", "Names are those of IANA"),
        ("../../../etc/passwd", "Names are those of IANA"),
        ("/usr/share/zoneinfo/UTC", "There is no time zone"),
        ("Europe", "There is no time zone"),
        ("Factory", "There is no time zone"),
        ("localtime", "There is no time zone"),
        ("posix/UTC", "There is no time zone"),
        ("+02:00", "There is no time zone"),
        ("UTC\x00", "There is no time zone"),
        ("x" * 65, "at most 64 characters"),
        ("", "The name of a time zone is needed"),
        ("  ", "The name of a time zone is needed"),
        (None, "The name of a time zone is needed"),
        (2, "The name of a time zone is needed"),
        (["UTC"], "The name of a time zone is needed"),
    ],
)
def test_a_zone_that_the_database_does_not_name_so_is_refused(name: object, says: str) -> None:
    refusal = refused("0 8 * * *", name)
    assert (refusal.code, refusal.status, list(refusal.errors)) == ("timezone_invalid", 422, ["timezone"])
    assert refusal.errors["timezone"] == [refusal.detail]
    assert says in refusal.detail


def test_every_name_of_the_database_is_taken_old_ones_too() -> None:
    assert set(oracle.zone_names()) == zones.names()
    assert {"UTC", "Asia/Calcutta", "Europe/Amsterdam", "US/Eastern", "Etc/GMT-14"} <= zones.names()
    for name in zones.names():
        assert str(zones.zone(name)) == name
        assert len(name) <= zones.LONGEST_NAME


SENTENCES = {
    "* * * * *": "Every minute",
    "*/5 * * * *": "Every 5 minutes",
    "0,15,30,45 * * * *": "Every 15 minutes",
    "*/7 * * * *": "At every 7th minute from 0 to 56 of every hour",
    "5/10 * * * *": "At every 10th minute from 5 to 55 of every hour",
    "0 * * * *": "At minute 0 of every hour",
    "5,10,40 * * * *": "At minutes 5, 10 and 40 of every hour",
    "0-10,30 * * * *": "At minutes 0 to 10 and 30 of every hour",
    "0 8 * * *": "At 08:00 every day",
    "0 8,20 * * *": "At 08:00 and 20:00 every day",
    "0,30 8,20 * * *": "At 08:00, 08:30, 20:00 and 20:30 every day",
    "0 9-17 * * *": "Every hour from 09:00 to 17:00 every day",
    "15 9-17 * * *": "Every hour from 09:15 to 17:15 every day",
    "0 */2 * * *": "Every 2 hours from 00:00 to 22:00 every day",
    "30 */5 * * *": "At 00:30, 05:30, 10:30, 15:30 and 20:30 every day",
    "0 1,2,3,8,9,15,16,22 * * *": "At minute 0 of hours 1 to 3, 8, 9, 15, 16 and 22 every day",
    "*/15 9-16 * * *": "Every 15 minutes from 09:00 to 16:45 every day",
    "*/20 8,12,20 * * *": "Every 20 minutes of hours 8, 12 and 20 every day",
    "* 9 * * *": "Every minute from 09:00 to 09:59 every day",
    "* 9,12,15 * * *": "Every minute of hours 9, 12 and 15 every day",
    "* */2 * * *": "Every minute of every 2nd hour from 0 to 22 every day",
    "10,20,35 1,2,3 * * *": "At minutes 10, 20 and 35 of hours 1 to 3 every day",
    "15 16 * * mon-fri": "At 16:15 on Monday to Friday",
    "15 16 * * 1,2,3,4,5": "At 16:15 on Monday to Friday",
    "0 0 * * 0,7": "At 00:00 on Sunday",
    "0 0 * * sat-sun": "At 00:00 on Saturday and Sunday",
    "0 0 * * 0-6": "At 00:00 every day",
    "0 0 * * 5L": "At 00:00 on the last Friday of the month",
    "0 0 * * mon#2,friL,wed": "At 00:00 on Wednesday, the second Monday of the month and the last Friday of the month",
    "* * * * sun": "Every minute on Sunday",
    "0 0 1 * *": "At 00:00 on day 1 of the month",
    "0 0 1,15 * *": "At 00:00 on days 1 and 15 of the month",
    "0 0 1-7 * *": "At 00:00 on days 1 to 7 of the month",
    "0 0 */2 * *": "At 00:00 on every 2nd day from 1 to 31 of the month",
    "0 0 L * *": "At 00:00 on the last day of the month",
    "0 0 1,L 6,12 *": "At 00:00 on day 1 and the last day of the month in June and December",
    "0 0 13 * fri": "At 00:00 on day 13 of the month or on Friday",
    "0 0 29 2 1#5": "At 00:00 on day 29 of the month or on the fifth Monday of the month in February",
    "0 0 */2 * mon": "At 00:00 on Monday, but only on every 2nd day from 1 to 31 of the month",
    "0 8 * 6 *": "At 08:00 every day in June",
    "* * * jan-mar,7 *": "Every minute in January to March and July",
    "0 0 31 12 *": "At 00:00 on day 31 of the month in December",
    "*/15 9 * */3 mon-fri": "At 09:00, 09:15, 09:30 and 09:45 on Monday to Friday in January, April, July and October",
}


@pytest.mark.parametrize("expression", SENTENCES)
def test_every_expression_has_its_sentence(expression: str) -> None:
    assert Schedule.read(expression, "UTC").sentence() == f"{SENTENCES[expression]}, UTC"


def test_a_sentence_names_the_zone_and_policies_that_are_not_the_usual_ones() -> None:
    def told(expression: str, **policies: str) -> str:
        return Schedule.read(expression, "Europe/Berlin", **policies).sentence()

    plain = "At 02:30 every day, Europe/Berlin time"
    assert told("30 2 * * *") == plain
    assert told("30 2 * * *", gap="shift") == f"{plain}; a time that does not exist fires as much later"
    assert told("30 2 * * *", gap="skip", overlap="both") == (
        f"{plain}; a time that does not exist is left out; a time that exists twice fires both times"
    )
    assert told("30 2 * * *", overlap="second") == f"{plain}; a time that exists twice fires the second time"
    assert told("*/30 2 * * *", gap="skip", overlap="both") == "At 02:00 and 02:30 every day, Europe/Berlin time"


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "schedules.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The lines of the table below the heading's line, cell by cell."""
    lines = PAGE.split(heading, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_about_schedules_tells_the_sentences_that_the_console_tells() -> None:
    told = {expression.strip("`"): sentence for expression, sentence in rows("| expression | means |")}
    assert len(told) == 8
    assert {expression: Schedule.read(expression, "UTC").sentence() for expression in told} == {
        expression: f"{sentence}, UTC" for expression, sentence in told.items()
    }


def test_the_page_about_schedules_tells_what_becomes_of_half_past_two_in_berlin() -> None:
    """O56, F105; and it names every rule."""
    found: list[str] = []
    for policy, values in (("gap", Gap.values), ("overlap", Overlap.values)):
        start = datetime(2026, 3, 28, 12, tzinfo=UTC) if policy == "gap" else datetime(2026, 10, 24, 12, tzinfo=UTC)
        for value in values:
            schedule = Schedule.read("30 2 * * *", "Europe/Berlin", **{policy: value})
            times = [f"{due.at:%H:%M}" for due in schedule.between(start, start + timedelta(days=1))]
            day = f"{start + timedelta(days=1):%Y-%m-%d}"
            found.append(f"on {day} at {' and '.join(times)} UTC" if times else f"on {day} not at all")
    assert [row[-1] for row in rows("| choice | |")] == found
    assert all(f"`{rule}`" in PAGE for rule in Rule.values)
