//! Wire: messages of `quell-shares` as protobuf, and back.
//!
//! Every message can be written. What is read is checked before a state machine sees it: the number
//! of limits, their order, names, weights and periods. Messages of a coordinator and of a member are
//! checked alike; those of a member also before they are decoded ([`check_request`]).

mod bounds;
mod decode;
mod encode;

use quell_shares::plan::{MAX_LIMITS, MAX_MEMBERSHIPS, MAX_NAME, Timing};

pub use self::bounds::{Checked, CheckedCodec, CheckedDecoder, check_request};
pub use self::decode::{decode_request, decode_response};
pub use self::encode::{encode_request, encode_response};

/// The largest message, in bytes: a grant of the most limits that there may be, with their names, takes
/// three quarters of it. Pass it to `max_decoding_message_size`; tonic's default is half as much.
pub const MAX_MESSAGE: usize = 8 << 20;

/// The largest request of a member, in bytes: a report of the most limits that there may be, with all that it
/// holds of them, takes nine tenths of it.
pub const MAX_REQUEST: usize = 4 << 20;

/// The longest wait that a coordinator may ask for, in seconds: then the member asks by itself.
pub const MAX_RETRY_S: u64 = 3_600;

/// The longest URL of a leader, in bytes.
pub const MAX_URL: usize = 1_000;

/// Reason why a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message is empty, or has something that only a later version knows.
    #[error(
        "the message is empty or of a later version: are all processes of the fleet up to date?"
    )]
    Kind,
    /// A list or a text in the bytes of a request is beyond its bound, or they are no request.
    #[error(
        "a list or a text in the message is longer than any of a node, or it is damaged: are all processes of \
         the fleet up to date?"
    )]
    Bytes,
    /// A list is too long.
    #[error("{0} are more than the {max} that a message may have", max = MAX_LIMITS)]
    Limits(usize),
    /// Limits are not in the order of their numbers, one has no number, or one is there twice.
    #[error("limits must be in the order of their numbers, which begin at 1: {0} is not")]
    Order(u64),
    /// A grant has too many leases.
    #[error("a limit has at most 3 leases, not {0}")]
    Leases(usize),
    /// A member is in too many groups.
    #[error("a member is in at most {max} groups, not {0}", max = MAX_MEMBERSHIPS)]
    Groups(usize),
    /// A name is empty or too long.
    #[error("a name has 1 to {max} bytes, not {0}", max = MAX_NAME)]
    Name(usize),
    /// A URL is too long.
    #[error("a URL has at most {max} bytes, not {0}", max = MAX_URL)]
    Url(usize),
    /// A weight is 0.
    #[error("a weight must be at least 1")]
    Weight,
    /// The report period is not one that a plan may have.
    #[error("a report period is {least:?} to {most:?}, not {0:?}", least = Timing::REPORT.start(), most = Timing::REPORT.end())]
    Report(core::time::Duration),
    /// A wait is too long.
    #[error("a member waits at most {max} s, not {0:?}", max = MAX_RETRY_S)]
    Retry(core::time::Duration),
}
