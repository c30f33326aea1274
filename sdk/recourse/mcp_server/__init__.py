"""The MCP server: what language models are offered of a console, behind people's rights, plans and approvals.

Nothing here is imported before `recourse mcp` runs, but for its options.
"""
