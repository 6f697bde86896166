"""Options of units and tasks as they are written on a command line."""

import pytest

from lipschitz_rnn.commands.parsing import parse_options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.8", 0.8),
        ("[0.8, 0.001]", [0.8, 0.001]),
        ("midpoint", "midpoint"),
        ("true", True),
        ("True", True),
        (" False ", False),
        ("null", None),
        ("None", None),
        ("TRUE", "TRUE"),
        ('"True"', "True"),
    ],
)
def test_values_are_json_or_python_words_or_text(text: str, value: object) -> None:
    found = parse_options([f"name={text}"], "-u")["name"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["beta", "=0.8", " =0.8"])
def test_an_option_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write name=value, e\.g\. -u beta=0\.8"):
        parse_options([text], "-u")


def test_the_example_is_an_option_of_a_task_where_one_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"write name=value, e\.g\. --task-option length=300"):
        parse_options(["augment"], "--task-option")
