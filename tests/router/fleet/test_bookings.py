"""Bookings bridge the time between two reports of a worker."""

from triptych.router.fleet.bookings import Bookings


def bookings() -> Bookings:
    return Bookings(lambda total: None)


def test_work_counts_until_it_is_closed() -> None:
    book = bookings()
    first, second = book.add(100), book.add(20)
    assert book.total == 120
    first.close()
    first.close()
    assert book.total == 20
    second.close()
    assert book.total == 0


def test_a_report_asked_for_after_the_work_was_sent_covers_it() -> None:
    book = bookings()
    book.add(100).sent(now=1.0)
    book.cover(asked_at=2.0)
    assert book.total == 0


def test_a_report_asked_for_before_the_work_was_sent_does_not_cover_it() -> None:
    book = bookings()
    book.add(100).sent(now=3.0)
    book.add(7)  # not even sent
    book.cover(asked_at=2.0)
    assert book.total == 107


def test_every_change_is_told() -> None:
    totals: list[float] = []
    book = Bookings(totals.append)
    booking = book.add(5)
    booking.close()
    booking.close()
    assert totals == [5, 0]
