"""Pages and assets reach browsers compressed; the APIs answer programs as they are."""

from __future__ import annotations

import gzip

from django.test import Client

from tests.cast import Api

ACCEPTS = {"Accept-Encoding": "gzip, deflate, br"}


def test_a_page_and_its_assets_are_compressed_for_who_accepts_it(db: None) -> None:
    for path in ("/console/login/", "/admin/login/", "/static/recourse/console.css"):
        plain, packed = Client().get(path), Client().get(path, headers=ACCEPTS)
        assert "Content-Encoding" not in plain.headers, path
        assert packed.headers["Content-Encoding"] == "gzip", path
        assert "Accept-Encoding" in packed.headers["Vary"], path
        body = gzip.decompress(packed.getvalue())
        assert len(packed.getvalue()) < len(body) / 2, path
        assert len(body) == len(plain.getvalue()), path


def test_the_length_of_a_page_tells_nothing_of_what_is_in_it(db: None) -> None:
    """BREACH: the same page has another length each time, and its token another form."""
    pages = [Client().get("/console/login/", headers=ACCEPTS).content for _ in range(8)]
    assert len({len(page) for page in pages}) > 1
    assert len({gzip.decompress(page) for page in pages}) == len(pages)


def test_an_answer_of_the_apis_is_left_as_it_is(api: Api) -> None:
    """A worker's library accepts compression by itself; compressing would cost more time than it saves."""
    for path in ("/v1/schema", "/healthz"):
        assert "Content-Encoding" not in Client().get(path, headers=ACCEPTS).headers, path
    assert "Content-Encoding" not in api.post("/workers/bootstrap", {"workerName": "w"}, **ACCEPTS).headers
