"""The command line for people: how it is spelled, what it says, and how it ends. `recourse.cli` puts it together.

Nothing is decided here: every answer is the console's. Modules are imported by `recourse --help`, and so none of them
imports HTTP or rich before it is used.
"""
