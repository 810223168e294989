import pytest
import torch

from runmanager.checks.observed_run import digest_of


@pytest.mark.parametrize(
    ("one", "other"),
    [([1], [1.0]), (0.0, -0.0), ({"a": 1}, {"b": 1}), (torch.zeros(2), torch.zeros(2, 1)), (len, max)],
)
def test_other_content_has_another_digest(one, other):
    assert digest_of(one) != digest_of(other)


def test_equal_content_has_one_digest_whether_it_is_one_object_or_two():
    text = " ".join(["some", "text"][:2])

    assert digest_of([text, text]) == digest_of(["some text", " ".join(["some", "text"][:2])]) != ""
    assert digest_of({"a", "b", "c"}) == digest_of({"c", "b", "a"})


def test_an_object_without_content_and_a_large_one_have_no_digest():
    assert digest_of(i for i in [1]) == digest_of([*range(5_000_000)]) == ""
