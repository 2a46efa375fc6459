"""Options of environments: each wrong one is refused by its name."""

from typing import Any

import pytest

from temper.envs.catalog import configure_env

WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "multiple_choice": [
        ({"shuffle": "no"}, "options"),
        ({"shufle": True}, "options"),
    ],
    "needles": [
        ({"length": 0}, "options"),
        ({"length": "long"}, "options"),
        ({"unit": "bytes"}, "options"),
        ({"unit": "tokens", "length": 5}, "options"),
        ({"tokenizer": "x"}, "options"),
        ({"unit": "tokens", "length": 5, "tokenizer": "no/such/folder"}, "options"),
        ({"task": "double"}, "options"),
        ({"haystack": "hay"}, "options"),
        ({"needles": 0}, "options"),
        ({"needles": None}, "options"),
        ({"depth": 1.5}, "options"),
        ({"lenght": 5}, "options"),
    ],
    "search": [
        ({"corpus": 5}, "options"),
        ({"results": 0}, "options"),
        ({"snippet": -1}, "options"),
        ({"page": "all"}, "options"),
        ({"top": 5}, "options"),
    ],
    "gym": [
        ({"ID": "x"}, "unknown 'ID'"),
        ({"id": "FrozenLake-v1", "max_step": 3}, "did you mean 'max_steps'"),
        ({"kwargs": {}}, "for example FrozenLake-v1"),
        ({"id": "NoSuchGame-v1"}, "can't make 'NoSuchGame-v1'"),
        ({"id": "FrozenLake-v1", "kwargs": {"slip": 1}}, "can't make 'FrozenLake-v1'"),
        ({"id": "FrozenLake-v1", "kwargs": 3}, "options.kwargs is 3"),
        ({"id": "Pendulum-v1", "actions": ["a"]}, "options.actions"),
        ({"id": "Blackjack-v1", "frame": "ansi"}, "Blackjack-v1 has text"),
        ({"id": "Blackjack-v1", "actions": ["a", "A"]}, "needs 2 different names"),
        ({"id": "Blackjack-v1", "actions": ["a"]}, "needs 2 different names"),
        ({"id": "Blackjack-v1", "max_steps": 0}, "options.max_steps=0"),
        ({"id": "Blackjack-v1", "success": "yes"}, "options.success"),
    ],
    "nemo_gym": [
        ({"url": "http://10.0.0.1"}, "options.hosts"),
        ({"url": "http://169.254.169.254/latest"}, "options.hosts"),
        ({"url": "http://127.0.0.1.example.com"}, "options.hosts"),
        ({"url": "http://127.0.0.1@example.com"}, "without user"),
        ({"url": "ftp://127.0.0.1"}, "options.url"),
        ({"url": 5}, "options.url"),
        ({"url": "http://localhost", "protocol": "verify"}, "options.protocol"),
        ({"url": "http://localhost", "timeout": 3}, "did you mean 'timeout_s'"),
        ({"url": "http://localhost", "timeout_s": 0}, "above 0"),
        ({"url": "http://localhost", "retries": -1}, "options.retries=-1"),
        ({"url": "http://localhost", "retries": 1.5}, "options.retries=1.5"),
        ({"url": "http://localhost", "hosts": "x"}, "list of host names"),
        ({"url": "http://localhost", "key_variable": "TEMPER_NO_SUCH_KEY"}, "TEMPER_NO_SUCH_KEY"),
        ({"url": "http://a.example", "hosts": ["a.example"], "key_variable": "PATH"}, "https"),
    ],
}


@pytest.mark.parametrize(
    ("env_id", "options", "key"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_a_wrong_option_is_named_with_what_would_be_right(env_id: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        configure_env(env_id, options)
