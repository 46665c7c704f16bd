"""What can go wrong. Every text tells what happened, the limit and the value given, and what to do."""


class AerieError(Exception):
    """Root of every error that Aerie raises on purpose. `status`, `kind` and `code` shape the HTTP answer."""

    status = 500
    kind = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The request field or config key at fault."""
        if code is not None:
            self.code = code


class ConfigError(AerieError):
    """A config, a command line or a checkpoint that cannot be served."""

    code = "bad_config"


class BadRequest(AerieError):
    status = 400
    kind = "invalid_request_error"


class Unauthorized(AerieError):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class RequestTimeout(AerieError):
    """A request that did not arrive completely in time."""

    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"


class NotFound(AerieError):
    status = 404
    kind = "not_found_error"


class TooLarge(AerieError):
    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class UnsupportedEncoding(AerieError):
    status = 415
    kind = "invalid_request_error"
    code = "unsupported_encoding"


class Overloaded(AerieError):
    """The queue is full. `retry_after` is in whole seconds."""

    status = 503
    kind = "overloaded_error"
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class QueueTimeout(AerieError):
    """A request that got no row in time (limits.queue_seconds); worth sending again later."""

    status = 503
    kind = "timeout_error"
    code = "queue_timeout"


class DeadlineExceeded(AerieError):
    """A request that exceeded its total time (limits.total_seconds); sent again, it would take as long."""

    status = 503
    kind = "timeout_error"
    code = "deadline_exceeded"


class EngineDead(AerieError):
    """The scheduler or the lane is gone; every open request ends with this and the process exits non-zero."""

    status = 500
    kind = "server_error"
    code = "engine_dead"
