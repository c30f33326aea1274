"""The console's screens of runs: what is shown, what is offered, and why not."""
