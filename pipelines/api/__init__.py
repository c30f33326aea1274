"""The two HTTP APIs: for applications and their workers (contract §2), and for people's tools under /v1 (§3)."""
