import sys
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace

import pytest

from runmanager.errors import GridError
from runmanager.nested import flat, leaves, mapping_of, plain_config, replaced


@dataclass(frozen=True)
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Config:
    opt: Optimizer = field(default_factory=Optimizer)
    extra: dict[str, object] = field(default_factory=lambda: {"a": {"b": 1}, "labels": {0: "cat"}})
    width: int = 8
    double: int = field(init=False)

    def __post_init__(self):
        self.double = 2 * self.width


def test_the_leaves_of_a_configuration_have_dotted_names():
    assert dict(leaves(Config(), unexpanded=["opt"])) == {
        "opt": Optimizer(), "extra.a.b": 1, "extra.labels": {0: "cat"}, "width": 8, "double": 16,
    }  # fmt: skip


def test_values_are_replaced_in_a_copy_whose_types_stay():
    config = Config()

    copy = replaced(config, {"opt.lr": 0.5, "extra.a.b": 2, "width": 4})

    assert copy == Config(Optimizer(0.5), {"a": {"b": 2}, "labels": {0: "cat"}}, 4)
    assert copy.double == 8
    assert config == Config()
    assert copy.extra is not config.extra


def test_a_mapping_that_cannot_be_changed_is_replaced_by_a_dict():
    assert replaced({"a": MappingProxyType({"b": 1, "c": 2})["b"], "d": {"e": 1}}, {"d.e": 3}) == {
        "a": 1,
        "d": {"e": 3},
    }


def test_a_grid_that_is_nested_without_end_is_refused():
    grid: dict[str, object] = {}
    grid["a"] = grid

    with pytest.raises(GridError, match="nested more than 50 deep"):
        list(flat(grid))


class OmegaConf:
    """Stands in for the class of that name, whose configurations are mappings here."""

    @staticmethod
    def is_config(value):
        return isinstance(value, MappingProxyType)

    @staticmethod
    def to_container(value, resolve, throw_on_missing):
        assert resolve
        assert throw_on_missing
        if "???" in value.values():
            raise ValueError("Missing mandatory value: lr")
        return dict(value)


def test_a_configuration_of_omegaconf_is_converted_by_its_own_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "omegaconf", SimpleNamespace(OmegaConf=OmegaConf))

    assert type(plain_config(MappingProxyType({"lr": [1]}))) is dict
    assert mapping_of(MappingProxyType({"lr": [1]})) == {"lr": [1]}
    with pytest.raises(GridError) as caught:
        mapping_of(MappingProxyType({"lr": "???"}))
    assert str(caught.value) == (
        "the configuration cannot be read (ValueError: Missing mandatory value: lr): give it that value"
    )
