"""The log-in of a new console: one administrator, made when there is nobody yet."""

from __future__ import annotations

import secrets
from pathlib import Path

from django.contrib.auth import get_user_model

from config import secret_files

NAME = "admin"
FILE = "ADMIN_PASSWORD"
IN_USE = "first_password"  # in the session of whoever logged in with it


def ensure(data_dir: Path) -> str:
    """The sentence that tells how to log in. Makes the first user, its password kept in `data_dir`, when there is none.

    The password is shown again at later starts as long as it is in use; nothing is changed then.
    """
    users = get_user_model().objects
    path = data_dir / FILE
    if not users.exists():
        problems: list[str] = []
        password = secret_files.load_or_make(path, lambda: secrets.token_urlsafe(12), problems)
        users.create_superuser(NAME, password=password)
        return f"log in as {NAME} with the password {password}"
    user = users.filter(username=NAME, is_active=True).first()
    if user is not None and path.exists():
        password = path.read_text().strip()
        if user.check_password(password):
            return f"log in as {NAME} with the password {password}"
    return "log in with your account"


def is_first(data_dir: Path, name: str, password: str) -> bool:
    """Whether somebody logged in with what the first start made, which lies readable on the console's host."""
    path = data_dir / FILE
    if name != NAME or not path.exists():
        return False
    return secrets.compare_digest(path.read_text().strip().encode(), password.encode("utf-8", "surrogatepass"))
