//! Frame: its bounds, and why bytes are not a frame.

/// Bounds of a frame. Each default has a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// The most arguments of a command, including its name. Default 1,024: seven times what the
    /// longest query with 64 entries needs.
    pub max_args: usize,
    /// The longest argument in bytes. Default 64 KiB: keys are names, not documents.
    pub max_bulk: usize,
    /// The longest line (an inline command, a simple string) in bytes. Default 64 KiB, as in Redis.
    pub max_line: usize,
    /// The longest frame in bytes: what a connection may have to hold before it can answer. Default
    /// 256 KiB, so that 1,000 slow connections need at most 256 MB.
    pub max_frame: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            max_args: 1_024,
            max_bulk: 64 * 1_024,
            max_line: 64 * 1_024,
            max_frame: 256 * 1_024,
        }
    }
}

/// Reason why bytes are not a frame. Send the text, then close: the bytes after them cannot be understood.
///
/// If a bound is exceeded, the error contains the bound, and the text names it after the words of
/// Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The head of the array is not a number, or more than [`FrameLimits::max_args`].
    #[error("Protocol error: invalid multibulk length: write 0 to {0} arguments")]
    ArrayLength(usize),
    /// The length of an argument is not a number, or more than [`FrameLimits::max_bulk`].
    #[error("Protocol error: invalid bulk length: write 0 to {0} bytes")]
    BulkLength(usize),
    /// A byte that cannot begin an argument.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    ArgumentType(u8),
    /// An array, map, set, push or attribute as an argument.
    #[error("Protocol error: an argument cannot be an aggregate ('{}'), send a bulk string", .0.escape_ascii())]
    Nested(u8),
    /// A null, boolean or error as an argument.
    #[error("Protocol error: an argument of type '{}' has no text, send a bulk string", .0.escape_ascii())]
    NoText(u8),
    /// A malformed number, or a verbatim string without its format.
    #[error("Protocol error: invalid argument of type '{}'", .0.escape_ascii())]
    Malformed(u8),
    /// An argument does not end where its length says.
    #[error("Protocol error: expected CRLF after an argument")]
    Terminator,
    /// A line longer than [`FrameLimits::max_line`].
    #[error("Protocol error: too big inline request: write at most {0} bytes in a line")]
    LongLine(usize),
    /// A frame longer than [`FrameLimits::max_frame`].
    #[error("Protocol error: too big request: write at most {0} bytes, all arguments together")]
    LongFrame(usize),
    /// A quote that is not closed, or is followed by more text.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// The client speaks HTTP.
    #[error("Protocol error: this port speaks RESP, not HTTP")]
    Http,
    /// The client begins a handshake of TLS.
    #[error("Protocol error: this port speaks RESP, and TLS came: connect without TLS")]
    Tls,
}
