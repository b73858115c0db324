"""Ranges that fields declare, and the one function that checks them."""

import dataclasses
from typing import Optional

import pytest

from cmlm.common import fields
from cmlm.errors import UserError


@dataclasses.dataclass
class Part:
    share: float = fields.ranged(0.5, at_least=0, below=1)
    weight: float = 1.0
    steps: tuple[int, ...] = fields.ranged((), at_least=1)

    @property
    def is_enabled(self):
        return self.weight != 0


@dataclasses.dataclass
class Whole:
    form: str = fields.one_of("", ("", "paper"))
    limit: int = fields.ranged(-1, at_least=1, also=(-1, "all"))
    rate: float = fields.ranged(1.0, above=0, at_most=1)
    size: Optional[int] = fields.ranged(None, at_most=9)
    flag: bool = False
    part: Part = dataclasses.field(default_factory=Part)

    def check_together(self, prefix):
        if self.flag and self.size is None:
            raise fields.refused(f"{prefix}size", self.size, "a number beside flag")


def message(config) -> str:
    with pytest.raises(UserError) as error:
        fields.check(config, "a.")
    return str(error.value)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"form": "x"}, "a.form is 'x'; allowed: '', paper"),
        ({"limit": 0}, "a.limit is 0; allowed: -1 (all), or at least 1"),
        ({"rate": 0.0}, "a.rate is 0.0; allowed: above 0 to 1"),
        ({"rate": float("nan")}, "a.rate is nan; allowed: above 0 to 1"),
        ({"size": 10}, "a.size is 10; allowed: at most 9"),
        ({"size": True}, "a.size is True; allowed: an integer or null"),
        ({"flag": 1}, "a.flag is 1; allowed: true or false"),
        ({"flag": True}, "a.size is None; allowed: a number beside flag"),
        ({"rate": 10**400}, f"a.rate is 1{'0' * 99}... (401 characters); allowed"),
        (
            {"size": 2**20_000},
            "a.size is an integer of 20001 bits; allowed: below 2**63",
        ),
        ({"form": "x" * 5000}, f"a.form is '{'x' * 99}... (5,002 characters); allo"),
        ({"part": Part(1.0)}, "a.part.share is 1.0; allowed: 0 to below 1"),
        ({"part": Part(0.5, float("inf"))}, "a.part.weight is inf; allowed: a finite"),
        ({"part": Part(steps=[3, 0])}, "a.part.steps is [3, 0]; allowed: at least 1"),
        ({"part": Part(steps=["x"])}, "an item of a.part.steps is 'x'; allowed: an"),
        ({"part": Part(steps=[10.5])}, "an item of a.part.steps is 10.5; allowed: an"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_place(values, expected):
    fields.check(Whole(), "a.")
    assert message(Whole(**values)).startswith(expected)


def test_a_part_that_is_switched_off_needs_right_types_only():
    fields.check(Whole(part=Part(share=2.0, weight=0.0)))
    assert "share is 'x'" in message(Whole(part=Part(share="x", weight=0.0)))
    assert "share is nan" in message(Whole(part=Part(float("nan"), weight=0.0)))


def test_open_fields_are_filled_in_before_the_rules_between_fields():
    @dataclasses.dataclass
    class Filled(Whole):
        def fill_in(self):
            self.size = self.size or 3

    config = Filled(flag=True)
    fields.check(config, "a.")
    assert config.size == 3


def test_what_yaml_has_read_as_another_type_is_put_right():
    config = Whole(form=None, limit=3.0, rate="1e-3", part=Part(steps=[1, 2.0]))
    fields.check(config)
    assert (config.form, config.limit, config.rate) == ("", 3, 1e-3)
    assert config.part.steps == (1, 2)
    assert all(isinstance(number, int) for number in (config.limit, *config.part.steps))
