"""The package's version, in one place for the wire and the build."""

VERSION = "0.1.0"
