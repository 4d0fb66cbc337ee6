"""What can go wrong, named for what the reader can do about it.

TriptychError                  never raised itself
  RequestError                 the caller must change something: 4xx, never retried
    InvalidRequest             400  malformed, out of range, unknown field value
    InvalidMedia               400  an image that cannot be used; says which and why
    MediaTooLarge              413  more bytes than allowed
    BodyTooLarge               413  the HTTP body
    ContextTooLong             400  prompt plus output exceed the model's context
    WrongContentType           415  the HTTP body says it is no JSON
    UnknownModel               404
    TimelineNotFound           404  nobody of this key has asked that, or it has no timeline
    TimelineExpired            410  others have come since, and their timelines are kept
    Unauthorized               401
    PermissionDenied           403  the key is good, and not for this
    OriginNotAllowed           403  a page of another site asks a server that wants no key, in somebody's browser
    HostNotAllowed             403  the same server by a name that it does not know: anybody's may lead to it
    MalformedRequest           400  no HTTP that we would read
    HeadTooLarge               431  too many headers, or too long ones
    RateLimited                429  the key's own limit; says how long to wait
  ClusterError                 try again, perhaps elsewhere: 5xx
    Overloaded                 429  no room before the deadline
      TooManyViewers           429  of the live page; nothing is refused for want of room
    NoWorker                   503  a role has no worker
    Draining                   503  this worker takes nothing new any more; another does
    TooManyConnections         503
    Stopping                   503  the router is being stopped
    WorkerLost                 503  a worker died or was replaced under the request
    Unproven                   503  whoever answers there does not prove to be of this cluster, or we do not to it
    WrongIncarnation           503  the address now belongs to another process
    FingerprintMismatch        503  caller and worker hold different models
    Preempted                  503  it made room for others at a full worker; prefill prompt and tokens again
    ClaimExpired               503  memory was freed or overwritten before it was read; encode or prefill again
    LayoutMismatch             500  two tiers disagree about a prompt: fail closed
    TransferFailed             503  no transport works between two workers, or a copy failed
    DeadlineExceeded           504
    Cancelled                  499  the client left
    InternalError              500  a bug of ours; the message is for the log, not for the client
"""

from typing import ClassVar


class TriptychError(Exception):
    """Base of everything raised on purpose; carries how HTTP and gRPC name it."""

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, item_index: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.item_index = item_index  # which multimodal item of the request, in prompt order
        self.param = param  # dotted path of the request field at fault
        self.retry_after_seconds: float | None = None  # where it is known

    def __str__(self) -> str:
        return self.message


class RequestError(TriptychError):
    """The caller must change something; the same request will fail again."""

    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    code = "invalid_value"


class InvalidRequest(RequestError):
    """A field is malformed or out of range."""


class InvalidMedia(RequestError):
    """An image that cannot be fetched, decoded or used."""

    def __init__(
        self, message: str, *, item_index: int | None = None, param: str | None = None, code: str = "invalid_image"
    ) -> None:
        super().__init__(message, item_index=item_index, param=param)
        self.media_code = code  # invalid_image, unsupported_image_format, image_fetch_failed, ...


class MediaTooLarge(RequestError):
    """An image with more bytes than allowed, or more rows than an encoder can hold."""

    http_status = 413
    code = "image_too_large"


class BodyTooLarge(RequestError):
    """An HTTP body over the limit."""

    http_status = 413
    code = "request_too_large"


class WrongContentType(RequestError):
    """An HTTP body that says it is something else than JSON."""

    http_status = 415
    code = "unsupported_media_type"


class ContextTooLong(RequestError):
    """Prompt plus requested output exceed the model's context."""

    code = "context_length_exceeded"


class UnknownModel(RequestError):
    """The model named in the request is not served here."""

    http_status = 404
    grpc_status = "NOT_FOUND"
    code = "model_not_found"


class TimelineNotFound(RequestError):
    """No request of this id, or one that the key may not look at."""

    http_status = 404
    grpc_status = "NOT_FOUND"
    code = "timeline_not_found"


class TimelineExpired(RequestError):
    """A request whose timeline had to make room for later ones."""

    http_status = 410
    grpc_status = "NOT_FOUND"
    code = "timeline_expired"


class Unauthorized(RequestError):
    """No key, or a wrong one."""

    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    """A good key, of somebody who may not do this."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    code = "permission_denied"


class OriginNotAllowed(RequestError):
    """A browser asks for a page of another site, and no key would have to be shown."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    code = "origin_not_allowed"


class HostNotAllowed(RequestError):
    """A name that a stranger may have made to lead to this machine, where no key would have to be shown."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    code = "host_not_allowed"


class MalformedRequest(RequestError):
    """HTTP that can be read in two ways, or in none."""

    code = "malformed_request"


class HeadTooLarge(RequestError):
    """A request's line and headers over the limit."""

    http_status = 431
    code = "headers_too_large"


class RateLimited(RequestError):
    """A key's own limit of requests, tokens or requests at once; the same request is welcome later."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    code = "rate_limit_exceeded"
    retryable = True


class ClusterError(TriptychError):
    """Not the caller's fault; the same request may succeed later or elsewhere."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    code = "service_unavailable"
    retryable = True


class Overloaded(ClusterError):
    """No room before the deadline."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    code = "overloaded"


class TooManyViewers(Overloaded):
    """As many look at the live page as may; who counts refusals for load does not count these."""


class NoWorker(ClusterError):
    """A role has no ready worker."""


class Draining(ClusterError):
    """The worker finishes what it has and takes nothing new; place the work elsewhere."""


class TooManyConnections(ClusterError):
    """The router has as many clients as it takes."""

    code = "too_many_connections"


class Stopping(ClusterError):
    """The router is being stopped under the request."""


class WorkerLost(ClusterError):
    """The worker died, or was replaced, while it held the request."""


class Unproven(WorkerLost):
    """One of the two ends of a connection does not prove that it belongs to the cluster."""

    grpc_status = "UNAUTHENTICATED"


class WrongIncarnation(WorkerLost):
    """The address now belongs to another process than the caller means."""

    grpc_status = "FAILED_PRECONDITION"


class FingerprintMismatch(ClusterError):
    """Caller and worker hold different models."""

    grpc_status = "FAILED_PRECONDITION"


class Preempted(ClusterError):
    """It made room for others at a worker that is out of KV blocks; prefill its prompt and what it has said again."""


class ClaimExpired(ClusterError):
    """The owner freed or reused the memory before it was read; encode or prefill again."""

    grpc_status = "ABORTED"


class TransferFailed(ClusterError):
    """No transport works between two workers, or a copy failed."""


class LayoutMismatch(ClusterError):
    """Two tiers disagree about a prompt; going on would be fluent garbage."""

    http_status = 500
    grpc_status = "DATA_LOSS"
    code = "layout_mismatch"
    retryable = False


class DeadlineExceeded(ClusterError):
    """The request's time is up."""

    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    code = "timeout"
    retryable = False


class Cancelled(ClusterError):
    """The client left, or the router gave the request up."""

    http_status = 499
    grpc_status = "CANCELLED"
    code = "cancelled"
    retryable = False


class InternalError(ClusterError):
    """A bug of ours, or a library's, that ended this request alone."""

    http_status = 500
    grpc_status = "INTERNAL"
    code = "internal_error"
    retryable = False


class InvalidRecord(TriptychError):
    """A value that travels between tiers breaks its own rules: the fault is the caller's, which is one of our own."""

    grpc_status = "INVALID_ARGUMENT"
    code = "invalid_record"


class InvariantViolation(TriptychError):
    """Bookkeeping that contradicts itself: a bug of ours, found by a pool's, table's or engine's check()."""

    code = "invariant_violation"


class ConfigError(TriptychError):
    """A setting that cannot work; raised at start, names the setting and what would do."""

    code = "invalid_config"


def _tree(root: type[TriptychError]) -> dict[str, type[TriptychError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


ERROR_BY_NAME: dict[str, type[TriptychError]] = _tree(TriptychError)
