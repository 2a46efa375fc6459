"""Options of environments: each wrong one is refused by its name."""

from typing import Any

import pytest

from temper.envs.catalog import configure_env

LOCAL = {"url": "http://127.0.0.1:1/v1"}
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
        ({"depth": "x"}, "options.depth='x'"),
        ({"depth": [0.5]}, "options.depth"),
        ({"depth": True}, "options.depth"),
        ({"lenght": 5}, "options"),
    ],
    "search": [
        ({"corpus": 5}, "options"),
        ({"results": 0}, "options"),
        ({"snippet": -1}, "options"),
        ({"page": "all"}, "options"),
        ({"top": 5}, "options"),
    ],
    "reasoning_gym": [
        ({"dataset": "mini_sudoko"}, "'mini_sudoku'"),
        ({"datasets": ["ab"]}, "'dataset'"),
        ({"dataset": 3}, "options.dataset"),
        ({"dataset": ["ab", "bf"], "config": {"length": 3}}, "options.config"),
        ({"dataset": "ab", "config": {"lenght": 3}}, "'length'"),
        ({"dataset": "ab", "config": {"seed": 3}}, "'seed'"),
        ({"dataset": "ab", "config": [1]}, "options.config"),
    ],
    "verifiers": [
        ({}, "options"),
        ({"python": "p"}, "options"),
        ({"taskset": "t"}, "options"),
        ({"python": "p", "taskset": "t", "max_tasks": 0}, "options"),
        ({"a": 1}, "options"),
        ({"python": 3, "taskset": "t"}, "options.python"),
        ({"python": "p", "taskset": 3}, "options.taskset"),
        ({"python": "p", "taskset": "t", "env": 3}, "options.env"),
        ({"python": "p", "taskset": "t", "folder": 3}, "options.folder"),
        ({"python": "p", "taskset": "t", "variables": "HF_TOKEN"}, "options.variables"),
        ({"python": "p", "taskset": "t", "variables": [3]}, "options.variables"),
    ],
    "workspace": [
        ({"image": ""}, "image"),
        ({"image": 3}, "image"),
        ({"image": "--privileged"}, "image"),
        ({"imgae": "x"}, "image"),
    ],
    "anytime": [({"task": "tale"}, "tally, scan, filter")],
    "retail": [
        ({"outputs": "no"}, "outputs"),
        ({"idle": "no"}, "idle"),
        ({"databse": "x"}, "'database'"),
        ({"customer": "skript"}, "script"),
        ({"customer": 5}, "customer"),
        ({"customer": []}, "customer"),
        ({"customer": {}}, "customer.url"),
        ({"customer": LOCAL}, "customer.model"),
        ({"customer": {"url": 5, "model": "m"}}, "customer.url"),
        ({"customer": {**LOCAL, "model": ""}}, "customer.model"),
        ({"customer": {**LOCAL, "modl": "m"}}, "'model'"),
        ({"customer": {"url": "http://10.1.2.3/v1", "model": "m"}}, "hosts"),
        ({"customer": {**LOCAL, "model": "m", "hosts": "x"}}, "hosts"),
        ({"customer": {**LOCAL, "model": "m", "key_variable": "NOT_SET_HERE"}}, "NOT_SET_HERE"),
        ({"customer": {**LOCAL, "model": "m", "retries": -1}}, "retries"),
        ({"customer": {**LOCAL, "model": "m", "timeout_s": 0}}, "timeout_s"),
    ],
    "gym": [
        ({"id": "CartPole-v1", "idle": 1}, "options.idle"),
        ({"ID": "x"}, "'ID'"),
        ({"id": "FrozenLake-v1", "max_step": 3}, "'max_steps'"),
        ({"kwargs": {}}, "options.id"),
        ({"id": "NoSuchGame-v1"}, "'NoSuchGame-v1'"),
        ({"id": "FrozenLake-v1", "kwargs": {"slip": 1}}, "'FrozenLake-v1'"),
        ({"id": "FrozenLake-v1", "kwargs": 3}, "options.kwargs"),
        ({"id": "Pendulum-v1", "actions": ["a"]}, "options.actions"),
        ({"id": "Blackjack-v1", "frame": "ansi"}, "options.frame"),
        ({"id": "Blackjack-v1", "actions": ["a", "A"]}, "options.actions"),
        ({"id": "Blackjack-v1", "actions": ["a"]}, "options.actions"),
        ({"id": "Blackjack-v1", "max_steps": 0}, "options.max_steps=0"),
        ({"id": "Blackjack-v1", "success": "yes"}, "options.success"),
        ({"id": "Blackjack-v1", "success": float("nan")}, "options.success"),
        ({"id": "Blackjack-v1", "rules": 3}, "options.rules"),
    ],
    "nemo_gym": [
        ({}, "options.url"),
        ({"url": "http://10.0.0.1"}, "options.hosts"),
        ({"url": "http://169.254.169.254/latest"}, "options.hosts"),
        ({"url": "http://127.0.0.1.example.com"}, "options.hosts"),
        ({"url": "http://127.0.0.1@example.com"}, "options.url"),
        ({"url": "ftp://127.0.0.1"}, "options.url"),
        ({"url": 5}, "options.url"),
        ({"url": "http://localhost", "timeout": 3}, "'timeout_s'"),
        ({"url": "http://localhost", "timeout_s": 0}, "options.timeout_s"),
        ({"url": "http://localhost", "retries": -1}, "options.retries=-1"),
        ({"url": "http://localhost", "retries": 1.5}, "options.retries=1.5"),
        ({"url": "http://localhost", "hosts": "x"}, "options.hosts"),
        ({"url": "http://localhost", "key_variable": "TEMPER_NO_SUCH_KEY"}, "TEMPER_NO_SUCH_KEY"),
        ({"url": "http://a.example", "hosts": ["a.example"], "key_variable": "PATH"}, "https"),
    ],
}


@pytest.mark.parametrize(
    ("env_id", "options", "key"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_a_wrong_option_is_named(env_id: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        configure_env(env_id, options)
