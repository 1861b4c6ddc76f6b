"""Under a real systemd: does the service start, live, give way and come back as a household may expect?"""

from __future__ import annotations

from .conftest import MEMBER, STRANGER, Service, until


def test_the_first_question_of_a_member_starts_the_service(service: Service) -> None:
    assert (service.state("homebox.socket"), service.state()) == ("active", "inactive")
    asked = service.homebox("ask", "[[say=hello_there]]", user=MEMBER)
    assert (asked.returncode, asked.stdout) == (0, "hello there\n"), asked.stderr
    assert service.state() == "active"
