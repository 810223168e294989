"""The text on the package's page: README.md, whose relative links and pictures lead nowhere there."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
PICTURE, LINK = r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", r"\[([^\]]*)\]\((?!https?:)[^)]*\)"

setup(
    long_description=re.sub(LINK, r"\1", re.sub(PICTURE, "", README)),
    long_description_content_type="text/markdown",
)
