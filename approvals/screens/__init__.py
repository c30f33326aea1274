"""Screens of approvals: the inbox, the page on which a gate or a request is decided, and the count in the top bar."""
