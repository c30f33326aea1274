"""What requests and answers hold, as typed dictionaries: `operations` for `/v1`, `application` for applications.

An answer stays the JSON object that came. What a newer console adds is in it too, under its own name.
"""

from recourse.models import application, operations
from recourse.models.pages import Page

__all__ = ["Page", "application", "operations"]
