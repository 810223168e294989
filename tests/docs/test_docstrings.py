"""The reference of every public name is complete; `--doctest-modules` runs its examples."""

import doctest
import inspect
import re
from enum import EnumType

import runmanager

PROPERTIES = (property, type(inspect.getattr_static(runmanager.RunManager, "network")))
OF_ADAPTERS = {
    "is_open", "open_run", "device_of", "watched", "counting", "resume_from", "end_by", "end_failed",
    "end_interrupted", "end_left_open", "of_grid",
}  # fmt: skip
"""What `fit`, trainers and grids call of a manager, and a user does not."""
NOTHING = (None, "None", inspect.Signature.empty)


def documented():
    """Yield the name, the object, its docstring with that of its bases, and the class that it is in."""
    for name in runmanager.__all__:
        value = getattr(runmanager, name)
        if inspect.isclass(value):
            yield name, value, documentation_of_class(value), value
            bases = [vars(each) for each in value.__mro__[::-1] if each.__module__.startswith("runmanager")]
            for member, attribute in {name: each for base in bases for name, each in base.items()}.items():
                method = getattr(attribute, "__func__", attribute)
                is_public = not member.startswith("_") and member not in OF_ADAPTERS
                if is_public and isinstance(method, (*PROPERTIES, type(documented))):
                    yield f"{name}.{member}", method, documentation_of_method(value, member), value
        elif callable(value):
            yield name, value, inspect.getdoc(value) or "", None


def documentation_of_class(value):
    """A class without a constructor of its own has the arguments of its base."""
    bases = [each for each in value.__mro__[1:] if each.__module__.startswith("runmanager")]
    inherited = documentation_of_class(bases[0]) if bases and "__init__" not in vars(value) else ""
    return f"{inspect.getdoc(value) or ''}\n\n{inherited}"


def documentation_of_method(value, member):
    """A method that overrides another one is documented there."""
    return "\n\n".join(
        inspect.cleandoc(vars(each)[member].__doc__) for each in value.__mro__ if member in vars(each)
    )


DOCUMENTED = {name: rest for name, *rest in documented()}


def problems_of(name, value, text, owner):
    if not re.match(r"[A-Z].*[.:]\n*", text):
        yield "begins with no sentence"
    if isinstance(value, PROPERTIES):
        if not any(
            name.rpartition(".")[2] in code for code in (codes_of(text), codes_of(inspect.getdoc(owner)))
        ):
            yield "is in no example"
        return
    if not codes_of(text) or not re.search(r"^Example:$", text, flags=re.MULTILINE):
        yield "has no Example: that is executed"
    if doctest.SKIP in options_of(text) or "Example::" in text:
        yield "has an example that is not executed"
    # nobody calls an enum
    constructor = None if isinstance(value, EnumType) else inspect.getattr_static(value, "__init__")
    if not isinstance(value, type) or "runmanager" in getattr(constructor, "__module__", ""):
        yield from problems_of_signature(value, text)


def problems_of_signature(value, text):
    signature = inspect.signature(value)
    is_silent = isinstance(value, type) or signature.return_annotation in NOTHING
    if not is_silent and not re.search(r"^(Returns|Yields):$", text, flags=re.MULTILINE):
        yield "has no Returns:"
    for parameter in signature.parameters:
        is_private = parameter == "self" or parameter.startswith("_")
        if not is_private and not re.search(rf"^ +\**{parameter}: ", text, flags=re.MULTILINE):
            yield f"does not document {parameter}"


def codes_of(text):
    """Return all words of the examples in a docstring."""
    examples = doctest.DocTestParser().get_examples(text)
    return {word for example in examples for word in re.findall(r"\w+", example.source)}


def options_of(text):
    return {option for example in doctest.DocTestParser().get_examples(text) for option in example.options}


def test_every_public_name_has_a_sentence_its_arguments_what_it_returns_and_an_example():
    problems = {name: list(problems_of(name, *rest)) for name, rest in DOCUMENTED.items()}

    assert {name: found for name, found in problems.items() if found} == {}
    assert len(problems) > 100
