"""A tenant's chat template beside the model's own: the same text, and nobody else's time."""

import asyncio
import time

import pytest

from inference.chat_template import ChatTemplate
from inference.errors import EngineError
from inference.server import template_process
from inference.server.template_process import TemplateProcess
from tests.tiny import CHAT_TEMPLATE

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
SPECIAL = {"bos_token": "<s>"}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def refused(process: TemplateProcess, source: str) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await process.render(source, SPECIAL, MESSAGES, None)
    assert caught.value.status == 400
    return caught.value


async def test_it_works() -> None:
    process = TemplateProcess()
    for source in (CHAT_TEMPLATE, "{{ bos_token }}{{ messages | tojson }} ✓"):
        expected = ChatTemplate(source, SPECIAL).render(MESSAGES, None)
        assert await process.render(source, SPECIAL, MESSAGES, None) == expected
    await process.close()


async def test_what_never_ends_is_killed_and_what_waits_is_served() -> None:
    process = TemplateProcess()
    hostile = asyncio.create_task(refused(process, ENDLESS))
    await asyncio.sleep(0)
    assert await process.render("{{ messages[0].content }}", {}, MESSAGES, None) == "Hi"
    assert "more time or memory" in (await hostile).message
    # Again it costs nobody anything.
    before = time.monotonic()
    await refused(process, ENDLESS)
    assert time.monotonic() - before < 0.5
    await process.close()


FAILING = (
    "{% if %}",
    "{{ raise_exception('no') }}",
    "{{ messages.nothing.at.all }}",
    "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
    "{{ 'x' * 999999999999 }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ '\\ud800' }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
)


async def test_what_fails_is_refused() -> None:
    process = TemplateProcess()
    for source in FAILING:
        assert (await refused(process, source)).param in ("chat_template", "messages"), source
    assert await process.render("{{ messages[1].content }}", {}, MESSAGES, None) == "Ho"
    await process.close()


async def test_who_leaves_takes_no_answer_along() -> None:
    process = TemplateProcess()
    leaving = asyncio.create_task(process.render("{{ 'mine' }}", {}, MESSAGES, None))
    await asyncio.sleep(0.001)
    leaving.cancel()
    assert await process.render("{{ 'yours' }}", {}, MESSAGES, None) == "yours"
    await process.close()


async def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "ANSWER_TIMEOUT_S", 0.0)
    process = TemplateProcess()
    await refused(process, "{{ 1 }}")
    await process.close()
