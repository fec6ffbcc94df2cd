"""Follow the links and the search forms of pages, and collect the forms that change something."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from flask.testing import FlaskClient


class Form(NamedTuple):
    """A form, as one of its buttons sends it.

    :ivar page: the URL of the page that has it.
    :ivar method: ``get`` or ``post``.
    :ivar action: where it is sent.
    :ivar fields: what is sent.
    """

    page: str
    method: str
    action: str
    fields: tuple[tuple[str, str], ...]

    def sent(self, **changed: str | None) -> dict[str, list[str]]:
        """Return the fields to send, with some *changed*; None leaves a field out."""
        data: dict[str, list[str]] = {}
        for name, value in self.fields:
            if name not in changed:
                data.setdefault(name, []).append(value)
        return data | {name: [value] for name, value in changed.items() if value is not None}


@dataclass
class _Open:
    """A form that has not been read to its end."""

    attributes: dict[str, str]
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[dict[str, str]] = field(default_factory=list)


class Reader(HTMLParser):
    """Reads the links and the forms of one page."""

    def __init__(self, page: str, html: str) -> None:
        super().__init__()
        self.page = page
        self.links: list[str] = []
        self._forms: list[_Open] = []
        #: The boxes that are outside of their forms, by the form's id.
        self._outside: list[tuple[str, str, str]] = []
        self._open: _Open | None = None
        self._needs_one = False
        self._area: list[str] | None = None
        self.feed(html)

    def forms(self) -> list[Form]:
        """Return each form once for each of its buttons, with all boxes outside of it ticked."""
        return [
            Form(
                self.page,
                form.attributes.get("method", "get").lower(),
                button.get("formaction", form.attributes["action"]),
                (*form.fields, *self._boxes_of(form), *_own(button)),
            )
            for form in self._forms
            for button in form.buttons or [{}]
        ]

    def _boxes_of(self, form: _Open) -> list[tuple[str, str]]:
        its_id = form.attributes.get("id")
        return [(name, value) for owner, name, value in self._outside if owner == its_id]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "form":
            self._open = _Open(values)
            self._forms.append(self._open)
        elif "form" in values:
            self._outside.append((values["form"], values["name"], values.get("value", "on")))
        elif self._open is not None:
            self._field(self._open, tag, values)

    def _field(self, form: _Open, tag: str, given: dict[str, str]) -> None:
        if tag == "button":
            form.buttons.append(given)
        elif tag == "select":
            self._needs_one = "required" in given
            form.fields.append((given["name"], ""))
        elif tag == "option" and ("selected" in given or self._needs_one):
            # If a choice is required, take the last: the first is empty.
            form.fields[-1] = (form.fields[-1][0], given.get("value", ""))
        elif tag == "textarea":
            form.fields.append((given["name"], ""))
            self._area = []
        elif tag == "input" and "name" in given:
            form.fields.append((given["name"], given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._area.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._open is not None and self._area is not None:
            name, _ = self._open.fields.pop()
            self._open.fields.append((name, "".join(self._area).removeprefix("\n")))
            self._area = None
        elif tag == "form":
            self._open = None


def _own(button: dict[str, str]) -> list[tuple[str, str]]:
    return [(button["name"], button.get("value", ""))] if "name" in button else []


#: Parameters that only change the appearance of a page.
_LOOKS = ("frames", "sort")
#: The parameters of lists of runs that change which forms there are.
_OF_RUNS = ("do", "picked", "status", "batch", "key", "task")


class Crawl:
    """All pages below the path of *start* that links lead to; one of each kind of run list.

    :ivar pages: the pages that were read, by their URLs.
    :ivar forms: the forms of all pages whose method is POST.
    """

    def __init__(self, client: FlaskClient, start: str) -> None:
        self.pages: dict[str, str] = {}
        self.forms: list[Form] = []
        self._client, self._path = client, start
        self._seen: set[object] = set()
        waiting = [start]
        while waiting:
            waiting += self._read(waiting.pop(0))

    def _read(self, url: str) -> list[str]:
        """Read a page; return the new URLs to which it links."""
        answer = self._client.get(url, follow_redirects=True)
        assert answer.status_code == 200, (url, answer.text)
        if answer.mimetype != "text/html":
            return []
        page = Reader(url, answer.text)
        self.pages[url] = answer.text
        leads = [link for link in page.links if not link.startswith("#")]
        for form in page.forms():
            if form.method == "post":
                self.forms.append(form)
            else:
                leads.append(f"{form.action}?{urlencode(form.fields)}")
        return [lead for lead in leads if lead.startswith(self._path) and self._is_new(lead)]

    def _is_new(self, url: str) -> bool:
        parts = urlsplit(url)
        pairs = [pair for pair in parse_qsl(parts.query) if pair[0] not in _LOOKS]
        if parts.path.startswith(f"{self._path}runs"):
            pairs = [pair for pair in pairs if pair[0] in _OF_RUNS]
        kind = (parts.path, frozenset(pairs))
        is_new = kind not in self._seen
        self._seen.add(kind)
        return is_new
