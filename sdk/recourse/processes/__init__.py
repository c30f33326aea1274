"""One command and all that it starts: begun within limits, watched, and ended as a tree.

`supervisor` is a small process of its own for each command; the others are its parts. They import the standard library
alone, so that it starts in milliseconds, and nothing of the worker's.
"""
