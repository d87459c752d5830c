"""Whose turn a request takes: from the headers, else the prefix cache's namespace."""

from typing import Any

import aiohttp
import pytest

from inference.server.model_folder import ModelFolder
from tests.inference.server.conftest import Scripted
from tests.inference.server.test_wire import CHAT, ids


async def send(url: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("salt", "headers", "expected"),
    [
        ({}, {}, ("", 1.0)),
        ({"cache_salt": "acme"}, {}, ("acme", 1.0)),
        ({"cache_salt": "shared"}, {"X-Tenant": "acme"}, ("acme", 1.0)),
        ({}, {"x-tenant": "acme", "x-tenant-weight": "2.5"}, ("acme", 2.5)),
    ],
)
async def test_the_engine_is_told_whose_turn_it_is(
    scripted: Scripted,
    folder: ModelFolder,
    salt: dict[str, str],
    headers: dict[str, str],
    expected: tuple[str, float],
) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"))
    status, _ = await send(url, CHAT | salt, headers)
    assert status == 200
    (request,) = engine.requests
    assert (request.tenant, request.weight) == expected


@pytest.mark.parametrize(
    "headers",
    [{"X-Tenant-Weight": text} for text in ("heavy", "nan", "0", "-1", "1e9", "")]
    + [{"X-Tenant": "a" * 300}],
)
async def test_a_share_that_cannot_be_is_refused_by_the_headers_name(
    scripted: Scripted, folder: ModelFolder, headers: dict[str, str]
) -> None:
    engine, url = await scripted(tokens=ids(folder, "Yo"))
    status, body = await send(url, CHAT, headers)
    assert (status, body["error"]["param"]) == (400, next(iter(headers)))
    assert engine.requests == []
