//! Queue: commands between `MULTI` and `EXEC`.
//!
//! Some clients send every pipeline that way by default. Queued commands are answered in order and
//! one by one: each decides all limits of its query or none, but other connections may come in
//! between.

use std::fmt;

use super::args::{ArgSpan, Args};

/// The most queued commands: more than clients put into a pipeline.
pub const MAX_QUEUED: usize = 65_536;

/// The most memory of queued arguments, including 16 bytes for each argument's position:
/// [`MAX_QUEUED`] short commands fit.
pub const MAX_QUEUED_BYTES: usize = 8 << 20;

/// Commands that wait for `EXEC`.
#[derive(Default)]
pub struct Queue {
    bytes: Vec<u8>,
    spans: Vec<ArgSpan>,
    /// Offsets of the ends of each command's arguments.
    ends: Vec<usize>,
    is_broken: bool,
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too much is queued: write EXEC after at most {MAX_QUEUED} commands or {MAX_QUEUED_BYTES} bytes"
)]
pub struct QueueFull;

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command.
    ///
    /// # Errors
    /// [`QueueFull`] above [`MAX_QUEUED`] or [`MAX_QUEUED_BYTES`]; the queue is broken then.
    pub fn push(&mut self, args: Args<'_>) -> Result<(), QueueFull> {
        // The position of each argument counts as well, so that many empty ones are bounded too.
        let length: usize = args
            .iter()
            .map(|arg| arg.len() + size_of::<ArgSpan>())
            .sum();
        let held = self.bytes.len() + self.spans.len() * size_of::<ArgSpan>();
        if self.ends.len() >= MAX_QUEUED || held + length > MAX_QUEUED_BYTES {
            self.fail();
            return Err(QueueFull);
        }
        for arg in args.iter() {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(arg);
            let end = self.bytes.len();
            self.spans.push(ArgSpan { start, end });
        }
        self.ends.push(self.spans.len());
        Ok(())
    }

    /// Records that a command could not be queued: `EXEC` must answer none.
    pub fn fail(&mut self) {
        *self = Self {
            is_broken: true,
            ..Self::default()
        };
    }

    /// Returns true if a command could not be queued.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The bytes that it has allocated.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.bytes.capacity()
            + self.spans.capacity() * size_of::<ArgSpan>()
            + self.ends.capacity() * size_of::<usize>()
    }

    /// Number of queued commands.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if no command is queued.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = Args<'_>> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| Args {
            bytes: &self.bytes,
            spans: self.spans.get(start..*end).unwrap_or_default(),
        })
    }
}

/// Shows only how many there are, since one of them may hold a password.
impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoded, Decoder, FrameLimits};
    use super::*;

    fn with_args<T>(line: &str, then: impl FnOnce(Args<'_>) -> T) -> T {
        let mut decoder = Decoder::new(FrameLimits::default());
        match decoder.decode(line.as_bytes()) {
            Ok(Decoded::Command { args, .. }) => then(args),
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn gives_back_what_was_queued() {
        let mut queue = Queue::new();
        for line in ["PING\r\n", "ECHO \"\"\r\n", "CL.THROTTLE k 1 2 3\r\n"] {
            with_args(line, |args| queue.push(args)).unwrap();
        }
        let commands: Vec<Vec<&[u8]>> =
            queue.commands().map(|args| args.iter().collect()).collect();
        assert_eq!(commands[0], [b"PING"]);
        assert_eq!(commands[1], [&b"ECHO"[..], b""]);
        assert_eq!(commands[2].len(), 5);
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn is_bounded_and_breaks_when_full() {
        let mut queue = Queue::new();
        let line = format!("ECHO {}\r\n", "x".repeat(10_000));
        let accepted = (0..1_000)
            .take_while(|_| with_args(&line, |args| queue.push(args)).is_ok())
            .count();
        assert_eq!(
            accepted,
            MAX_QUEUED_BYTES / (4 + 10_000 + 2 * size_of::<ArgSpan>())
        );
        assert!(queue.is_broken() && queue.is_empty());
    }
}
