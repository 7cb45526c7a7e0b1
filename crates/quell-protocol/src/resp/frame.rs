//! Frame: how large one may be, and why bytes are none.

/// Bounds of a frame. Each default says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Most arguments of a command, its name included. Default 1,024: seven times what the longest
    /// question with 64 entries needs.
    pub max_args: usize,
    /// Longest argument in bytes. Default 64 KiB: keys are names, not documents.
    pub max_bulk: usize,
    /// Longest line (an inline command, a simple string) in bytes. Default 64 KiB, as Redis has it.
    pub max_line: usize,
    /// Longest frame in bytes: what a connection may have to hold before it can answer. Default
    /// 256 KiB, so that 1,000 slow connections need 256 MB at the most.
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

/// Why bytes are no frame. Answer with the text, then close: what follows cannot be understood.
///
/// Where a bound is passed, the error holds the bound and the text says it, after the words of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The head of the array is no number or more than [`FrameLimits::max_args`].
    #[error("Protocol error: invalid multibulk length: write 0 to {0} arguments")]
    ArrayLength(usize),
    /// The length of an argument is no number or more than [`FrameLimits::max_bulk`].
    #[error("Protocol error: invalid bulk length: write 0 to {0} bytes")]
    BulkLength(usize),
    /// A byte that begins no argument.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    ArgumentType(u8),
    /// An array, map, set, push or attribute as an argument.
    #[error("Protocol error: an argument cannot be an aggregate ('{}'), send a bulk string", .0.escape_ascii())]
    Nested(u8),
    /// A null, boolean or error as an argument.
    #[error("Protocol error: an argument of type '{}' has no text, send a bulk string", .0.escape_ascii())]
    NoText(u8),
    /// A number that is none, or a verbatim string without its format.
    #[error("Protocol error: invalid argument of type '{}'", .0.escape_ascii())]
    Malformed(u8),
    /// An argument does not end where it said.
    #[error("Protocol error: expected CRLF after an argument")]
    Terminator,
    /// A line longer than [`FrameLimits::max_line`].
    #[error("Protocol error: too big inline request: write at most {0} bytes in a line")]
    LongLine(usize),
    /// A frame longer than [`FrameLimits::max_frame`].
    #[error("Protocol error: too big request: write at most {0} bytes, all arguments together")]
    LongFrame(usize),
    /// A quote that does not end, or goes on after its end.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// Somebody speaks HTTP.
    #[error("Protocol error: this port speaks RESP, not HTTP")]
    Http,
}
