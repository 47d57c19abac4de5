"""Environments over HTTP and in the client: an admin makes them, every key may use them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from package_index import PackageIndex, wheel

import redoma
from serving import Serving


def test_an_environment_is_made_used_updated_and_removed(serve: Callable[..., Serving], index: PackageIndex) -> None:
    server = serve()
    boss = server.key("boss", "admin")
    with redoma.connect(server.url, key=boss) as admin, redoma.connect(server.url, key=server.made["agent"]) as agent:
        _make_use_and_remove(admin, agent, index)


def _make_use_and_remove(admin: redoma.Client, agent: redoma.Client, index: PackageIndex) -> None:
    assert agent.environments.list() == []
    with pytest.raises(redoma.ServiceError, match="may not do that"):
        agent.environments.create("greetings", ["greeting"])
    with pytest.raises(redoma.InvalidRequest):
        admin.environments.create("no/name", ["greeting"])
    with pytest.raises(redoma.InvalidRequest):
        admin.environments.create("greetings", ["--index-url=http://example.org"])
    made = admin.environments.create("greetings", ["greeting"])
    assert [(each["name"], each["version"]) for each in made["packages"]] == [("greeting", "1.0")]
    assert [each["name"] for each in agent.environments.list()] == ["greetings"]
    word = "import greeting; greeting.word"
    assert agent.run(word, environment="greetings").value == "hello"
    with agent.session(environment="greetings") as session:
        assert session.run(word).value == "hello"
    index.add(wheel("greeting", "1.1", {"greeting.py": "word = 'good day'\n"}))
    assert admin.environments.update("greetings")["packages"][0]["version"] == "1.1"
    assert agent.run(word, environment="greetings").value == "good day"
    admin.environments.remove("greetings")
    for name in ("greetings", "..", "x/y"):
        with pytest.raises(redoma.ServiceError) as refused:
            agent.environments.show(name)
        assert refused.value.status == 404
