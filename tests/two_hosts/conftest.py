"""Two hosts for a module's tests, or the reason why this machine cannot have them."""

from collections.abc import Iterator

import pytest

from tests.two_hosts.hosts import Cable, Host, HostsUnavailable, two_hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host, Cable]]:
    try:
        with two_hosts() as made:
            yield made
    except HostsUnavailable as error:
        pytest.skip(str(error))
