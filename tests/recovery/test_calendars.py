"""Calendars of the planner: months, days, what they are called, and what picking a day chooses. Pure."""

from __future__ import annotations

from datetime import date

from recovery.screens import calendars

TODAY = date(2026, 6, 3)


def test_two_months_are_shown_with_weeks_from_monday() -> None:
    may, june = calendars.months(date(2026, 6, 20), {}, None, TODAY)
    assert (may.title, june.title) == ("May 2026", "June 2026")
    assert [day.date.day if day else 0 for day in may.weeks[0]] == [0, 0, 0, 0, 1, 2, 3]
    assert calendars.span(date(2026, 6, 20)) == (date(2026, 5, 1), date(2026, 6, 30))
    assert calendars.span(date(2027, 1, 5)) == (date(2026, 12, 1), date(2027, 1, 31))


def test_a_day_is_called_after_the_worst_of_its_ticks_and_counts_them_all() -> None:
    """Colour is never alone, and a minutely day is one button."""
    day = date(2026, 5, 20)
    fates = {day: {"completed": 1437, "missed": 3}, date(2026, 5, 21): {"completed": 1}}
    by_day = {
        one.date: one
        for month in calendars.months(day, fates, (day, day), TODAY)
        for week in month.weeks
        for one in week
        if one
    }
    assert by_day[day].status == "missed"
    assert by_day[day].label == "Wednesday 20 May 2026: 1,440 ticks: 3 missed, 1,437 completed"
    assert by_day[day].is_chosen
    assert by_day[date(2026, 5, 21)].label == "Thursday 21 May 2026: completed"
    assert not by_day[date(2026, 5, 21)].is_chosen
    assert by_day[date(2026, 5, 22)].label == "Friday 22 May 2026: no ticks"
    assert by_day[date(2026, 5, 22)].status == ""


def test_the_second_day_that_is_picked_closes_the_range_whichever_is_earlier() -> None:
    one, other = date(2026, 5, 16), date(2026, 5, 10)
    assert calendars.picked(None, one) == (one, one)
    assert calendars.picked(one, other) == (other, one)


def test_months_end_where_schedules_end() -> None:
    assert [month.title for month in calendars.months(date(1800, 1, 5), {}, None, TODAY)] == ["January 1800"]
