import pytest

from tests.storage.comparing import fingerprint_changes


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"code": {"train": "1"}}, []),
        ({"code": {"train": "1"}}, {}, []),
        ({}, {"data": {"data": "1"}}, []),
        ({"code": {"train": "1"}}, {"code": {"train": "1"}, "data": {"data": "1"}}, ["data= is given now"]),
        ({"data": {"data": "1"}}, {"code": {"train": "1"}}, []),
        ({"values": {"a": "1", "b": "1"}}, {"values": {"a": "2", "c": "1"}}, ["a was 1, is 2"]),
        ({"statements": {"a": "1", "b": "1"}}, {"statements": {"a": "2"}}, ["source of a"]),
        (
            {"code": {"a": "1", "b": "1"}},
            {"code": {"a": "2", "c": "1"}},
            ["source of a", "source of b", "source of c"],
        ),
        ({"data": {"data": "1"}}, {"data": {"data": "2"}}, ["the data"]),
        ({"versions": {"torch": "1"}}, {"versions": {"numpy": "2"}}, []),
        (
            {"code": {"train": "1"}, "data": {"data": "1"}, "versions": {"torch": "1"}},
            {"code": {"train": "2"}, "data": {"data": "2"}, "versions": {"torch": "2"}},
            ["source of train", "the data", "torch was 1, is 2"],
        ),
    ],
    ids=[
        "new",
        "gone",
        "no grid",
        "data given",
        "data no longer given",
        "values",
        "statements",
        "code",
        "data",
        "versions",
        "all",
    ],
)
def test_changes_are_said_in_words(before, now, said):
    assert fingerprint_changes(before, now) == said


def test_builds_and_patches_of_a_version_are_the_same():
    assert fingerprint_changes({"versions": {"torch": "2.15.0+cpu"}}, {"versions": {"torch": "2.15.1"}}) == []
