"""Chat templates are other people's programs: what they may do, and what they may not."""

from __future__ import annotations

import time

import pytest

from homebox.errors import BadFile, InvalidRequest
from homebox.text.template import ChatTemplate


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source).render({"messages": [], "add_generation_prompt": True} | variables)


def test_the_extras_that_template_authors_expect_are_there() -> None:
    assert render("{{ messages | tojson }}", messages=[{"a": "<é>"}]) == '[{"a": "<é>"}]'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{% generation %}{{ 'said' }}{% endgeneration %}") == "said"
    assert render("{{ dict(a=1).a }}{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}") == "12"
    assert render("{% if true %}\n  x\n  {% endif %}\ny") == "  x\ny"


def test_loops_keep_all_their_variables() -> None:
    source = (
        "{% for m in x %}{{ loop.index0 }}{{ loop.length }}{{ loop.last }}{{ loop.previtem }} {% endfor %}"
    )
    assert render(source, x=["a", "b"]) == "02False 12Truea "
    tree = "{% for n in x recursive %}{{ n.v }}{{ loop(n.c) if n.c }}{% endfor %}"
    assert render(tree, x=[{"v": 1, "c": [{"v": 2, "c": []}]}]) == "12"
    assert render("{% for k, v in x.items() %}{{ k }}{{ v }}{% else %}none{% endfor %}", x={}) == "none"


def test_a_refusal_is_said_in_the_templates_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    for source in (
        "{{ 'a' + messages[0].content }}",
        "{{ 1 + 'a' }}",
        "{{ messages[0]['content'] | trim + none }}",
    ):
        with pytest.raises(InvalidRequest, match="does not accept these messages"):
            render(source, messages=[{"role": "user"}])


def test_what_is_no_template_is_a_bad_file() -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        ChatTemplate("{% for %}")
    with pytest.raises(BadFile):
        ChatTemplate("{{ (" * 5000)


ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop over a call": "{% macro f() %}{% endmacro %}{% for a in range(99999) %}{% for b in range(99999) %}{{ f() }}"
    "{% endfor %}{% endfor %}",
    "macros that double": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{{ loop([1, 2]) }}{% endfor %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a product": "{% set ns = namespace(x=3) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a long text": "{{ 'ab' * 10 ** 12 }}",
    "a long output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_would_run_or_grow_without_end_is_stopped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homebox.text.template.MAX_CPU_S", 0.2)
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        render(ENDLESS[name])
    assert time.process_time() - began < 3


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ (messages | attr('__class__')).x }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{% set x = messages.__class__.__base__.__subclasses__() %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_gets_neither_out_nor_at_its_data(source: str) -> None:
    try:
        shown = render(source)
    except InvalidRequest:
        return
    assert shown == ""  # what is out of bounds is as good as not there


def test_a_template_reads_no_files() -> None:
    for source in ("{% include '/etc/passwd' %}", "{% import '/etc/passwd' as x %}"):
        with pytest.raises(InvalidRequest):
            render(source)
