//! Memo: the last `CL.THROTTLE` of a connection, to know the next one by its bytes.
//!
//! Nearly all calls of a client differ in their key alone. What stands before and after the key is
//! kept as it came; where both stand around another key, the limit and the quantity are the same,
//! since a frame is read from left to right and nothing in it depends on what the key is. So such a
//! call costs one look at its key, and no number is read twice.

use quell_core::cost::Cost;

use super::args::Args;
use super::decoder::short;
use super::frame::FrameLimits;
use super::throttle::{Throttle, ThrottleLimit};

/// Bytes before the head of the key: `*6\r\n$11\r\nCL.THROTTLE\r\n`.
const HEAD: usize = 22;

/// Bytes after the key, at most: numbers of 10 digits, with the heads of four arguments.
const MAX_TAIL: usize = 64;

/// Bytes of the longest frame that is known by its memo.
const MAX_FRAME: usize = 256;

/// The last `CL.THROTTLE` of a connection, but for its key.
#[derive(Clone, Debug)]
pub struct CallMemo {
    head: [u8; HEAD],
    tail: [u8; MAX_TAIL],
    tail_length: usize,
    last: Option<(ThrottleLimit, Option<Cost>)>,
    /// Whether every frame that it can know is within the bounds.
    is_of_use: bool,
}

impl CallMemo {
    /// A memo of nothing yet, for a connection with these bounds.
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

    /// The call that `input` begins with, and its length, if only its key differs from the last one.
    /// Whatever else it is, a [`Decoder`](super::Decoder) says, which must stand between two frames;
    /// this is for speed only.
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

    /// Notes a call that was read from `args`. One that came as a line, or is long, is not kept.
    #[cold]
    pub fn note(&mut self, args: Args<'_>, throttle: &Throttle<'_>) {
        self.last = None;
        if self.is_of_use && self.keep(args, throttle).is_some() {
            self.last = Some((throttle.limit, throttle.cost));
            // If what was kept does not stand for what was read, it was no frame as they come.
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
        // The line end of the last argument belongs to it.
        let end = args.spans.last()?.end + 2;
        let tail = args.bytes.get(key.end..end)?;
        self.head = *args.bytes.first_chunk()?;
        self.tail.get_mut(..tail.len())?.copy_from_slice(tail);
        self.tail_length = tail.len();
        (args.get(1)? == throttle.key).then_some(())
    }
}
