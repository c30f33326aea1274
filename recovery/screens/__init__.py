"""Screens of recovery: plans as consequences, operations, effects, forks."""
