//! Memo: the last `CL.THROTTLE` of a connection, so that the next one can be recognised by its
//! bytes.
//!
//! Nearly all calls of a client differ only in their key. The memo keeps the bytes before and after
//! the key. If both also surround another key, the limit and the quantity are the same, because a
//! frame is read from left to right and nothing in it depends on the key. So such a call costs only
//! reading its key, and no number is parsed twice.

use quell_core::cost::Cost;

use super::args::Args;
use super::decoder::short;
use super::frame::FrameLimits;
use super::throttle::{Throttle, ThrottleLimit};

/// Bytes before the head of the key: `*6\r\n$11\r\nCL.THROTTLE\r\n`.
const HEAD: usize = 22;

/// The most bytes after the key: numbers of 10 digits, with the heads of four arguments.
const MAX_TAIL: usize = 64;

/// The longest frame that the memo can recognise, in bytes.
const MAX_FRAME: usize = 256;

/// The last `CL.THROTTLE` of a connection, except for its key.
#[derive(Clone, Debug)]
pub struct CallMemo {
    head: [u8; HEAD],
    tail: [u8; MAX_TAIL],
    tail_length: usize,
    last: Option<(ThrottleLimit, Option<Cost>)>,
    /// True if every frame that it can recognise is within the bounds.
    is_of_use: bool,
}

impl CallMemo {
    /// An empty memo, for a connection with these bounds.
    #[must_use]
    pub const fn new(limits: &FrameLimits) -> Self {
        Self {
            head: [0; HEAD],
            tail: [0; MAX_TAIL],
            tail_length: 0,
            last: None,
            is_of_use: limits.max_frame >= MAX_FRAME
                && limits.max_bulk >= MAX_FRAME
                && limits.max_args >= 6,
        }
    }

    /// The call at the beginning of `input`, and its length, if only its key differs from the last
    /// one. For anything else use a [`Decoder`](super::Decoder), which must be between two frames;
    /// the memo only saves time.
    #[inline]
    #[must_use]
    pub fn find<'a>(&self, input: &'a [u8]) -> Option<(Throttle<'a>, usize)> {
        let (limit, cost) = self.last?;
        if *input.first_chunk::<HEAD>()? != self.head {
            return None;
        }
        let key = short(input, HEAD)?;
        let tail = self.tail.get(..self.tail_length)?;
        let length = key.end + self.tail_length;
        let throttle = Throttle {
            key: input.get(key.start..key.end)?,
            limit,
            cost,
        };
        (input.get(key.end..length)? == tail).then_some((throttle, length))
    }

    /// Stores a call that was read from `args`. An inline command or a long call is not stored.
    #[cold]
    pub fn note(&mut self, args: Args<'_>, throttle: &Throttle<'_>) {
        self.last = None;
        if self.is_of_use && self.keep(args, throttle).is_some() {
            self.last = Some((throttle.limit, throttle.cost));
            // If the stored bytes do not give the call again, it was not an ordinary frame.
            if self
                .find(args.bytes)
                .is_none_or(|(found, _)| found != *throttle)
            {
                self.last = None;
            }
        }
    }

    fn keep(&mut self, args: Args<'_>, throttle: &Throttle<'_>) -> Option<()> {
        let key = args.spans.get(1)?;
        // The line end of the last argument is included.
        let end = args.spans.last()?.end + 2;
        let tail = args.bytes.get(key.end..end)?;
        self.head = *args.bytes.first_chunk()?;
        self.tail.get_mut(..tail.len())?.copy_from_slice(tail);
        self.tail_length = tail.len();
        (args.get(1)? == throttle.key).then_some(())
    }
}
