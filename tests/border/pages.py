"""The page of `write_report`, read as a tree."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

_VOID = {"meta", "input", "br", "link", "img", "wbr"}


def parse(content: Path | str) -> ET.Element:
    """Read a page; elements that are not closed in order are an error."""
    reader = _Reader()
    reader.feed(content if isinstance(content, str) else content.read_text(encoding="utf-8"))
    reader.close()
    assert len(reader.open) == 1, [element.tag for element in reader.open]
    return reader.open[0]


def text_of(element: ET.Element) -> str:
    """Return the text of an element as one line, without scripts and styles."""
    parts = [element.text or ""] if element.tag not in ("script", "style") else []
    for child in element:
        parts += [text_of(child), child.tail or ""]
    return " ".join(" ".join(parts).split())


def by_id(page: ET.Element, name: str) -> ET.Element:
    """Return the element with an id."""
    (element,) = [element for element in page.iter() if element.get("id") == name]
    return element


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [ET.Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = ET.SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        ET.SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        if len(self.open[-1]):
            self.open[-1][-1].tail = (self.open[-1][-1].tail or "") + data
        else:
            self.open[-1].text = (self.open[-1].text or "") + data
