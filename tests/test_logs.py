"""Lines of logs: whose they are, and that nothing in them makes two of one."""

import contextvars
import json
import logging

from triptych.logs import FIELDS, JSONFormatter, TextFormatter, about
from triptych.pb import common_pb2
from triptych.services.guard import Door


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("triptych.here", logging.WARNING, __file__, 1, message, (), None)
    made.__dict__.update(extra)
    return made


def within(request_id: str, trace_id: str, formatter: logging.Formatter, of: logging.LogRecord) -> str:
    def formatted() -> str:
        about(request_id, trace_id)
        return formatter.format(of)

    return contextvars.copy_context().run(formatted)


def test_a_line_of_json_is_one_object_whatever_its_message_and_names_hold() -> None:
    line = within(
        "a\nb" + "c" * 500, "1" * 32, JSONFormatter("encode-1"), record('two\nlines "quoted"', fields={"x": 1})
    )
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == 'two\nlines "quoted"'
    assert (told["level"], told["logger"], told["process"], told["x"]) == ("warning", "triptych.here", "encode-1", 1)
    assert told["request_id"].startswith("a?bccc")
    assert len(told["request_id"]) == 128
    assert told["trace_id"] == "1" * 32
    assert FIELDS == "fields"


def test_a_line_of_text_names_its_request_once() -> None:
    assert within("r1", "", TextFormatter(), record("it broke")).endswith("it broke (request r1)")
    assert within("r1", "", TextFormatter(), record("request r1 broke")).endswith("request r1 broke")
    assert TextFormatter().format(record("it broke")).endswith("it broke")


def test_a_line_of_text_names_its_process() -> None:
    assert TextFormatter("encode-1").format(record("it broke")).endswith(" encode-1 triptych.here WARNING it broke")
    assert TextFormatter("100%s").format(record("it broke")).endswith(" 100%s triptych.here WARNING it broke")


def test_what_a_worker_logs_in_a_call_names_the_callers_request() -> None:
    door = Door(incarnation=7, fingerprint=b"f", longest_lease_seconds=1)
    envelope = common_pb2.Envelope(
        request_id=b"1" * 16,
        worker_incarnation=7,
        model_fingerprint=b"f",
        deadline_ms=1,
        log_id="mine",
        traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01",
    )

    def called() -> dict[str, str]:
        with door.inside(envelope, new_work=True):
            told: dict[str, str] = json.loads(JSONFormatter().format(record("within")))
            return told

    told = contextvars.copy_context().run(called)
    assert (told["request_id"], told["trace_id"]) == ("mine", "ab" * 16)
    envelope.log_id = envelope.traceparent = ""
    told = contextvars.copy_context().run(called)
    assert told["request_id"] == (b"1" * 16).hex()
    assert "trace_id" not in told
