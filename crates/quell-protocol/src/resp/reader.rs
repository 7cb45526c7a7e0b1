//! Reader: the commands of one connection, each decoded and parsed once.

use super::args::Args;
use super::command::Command;
use super::decoder::{Decoded, Decoder};
use super::error::CommandError;
use super::frame::{FrameError, FrameLimits};
use super::memo::CallMemo;
use super::throttle::Throttle;

/// Reads the commands of one connection.
#[derive(Debug)]
pub struct Reader {
    decoder: Decoder,
    /// The last `CL.THROTTLE`.
    last: CallMemo,
}

/// Result of reading the beginning of the input.
#[derive(Debug)]
pub enum Read<'a> {
    /// A command. Drop its [`Request::length`] from the input before the next call.
    Command(Request<'a>),
    /// Empty lines or arrays, which get no reply. Drop `length` bytes before the next call.
    Nothing {
        /// The number of their bytes.
        length: usize,
    },
    /// The frame is incomplete. Call again with the same bytes and more after them.
    Incomplete,
}

/// A command that was read.
#[derive(Debug)]
pub struct Request<'a> {
    /// The command, or why it is not one.
    pub command: Result<Command<'a>, CommandError>,
    /// The arguments, for queueing the command.
    pub args: Args<'a>,
    /// Bytes of its frame.
    pub length: usize,
}

impl<'a> Request<'a> {
    /// The command with these arguments; `length` is that of their frame.
    #[must_use]
    pub fn new(args: Args<'a>, length: usize) -> Self {
        Self {
            command: Command::parse(args),
            args,
            length,
        }
    }
}

impl Reader {
    /// A reader at the beginning of a connection.
    #[must_use]
    pub const fn new(limits: FrameLimits) -> Self {
        Self {
            last: CallMemo::new(&limits),
            decoder: Decoder::new(limits),
        }
    }

    /// The `CL.THROTTLE` at the beginning of `input`, and the length of its frame, if it differs from
    /// the last one only in its key: it is recognised by its bytes. [`Self::read`] reads the same, so
    /// this only saves time.
    #[inline]
    #[must_use]
    pub fn recognise<'a>(&self, input: &'a [u8]) -> Option<(Throttle<'a>, usize)> {
        match self.decoder.is_between_frames() {
            true => self.last.find(input),
            false => None,
        }
    }

    /// Reads the beginning of `input`.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn read<'a>(&'a mut self, input: &'a [u8]) -> Result<Read<'a>, FrameError> {
        Ok(match self.decoder.decode(input)? {
            Decoded::Command { args, length } => {
                let request = Request::new(args, length);
                if let Ok(Command::Throttle(throttle)) = &request.command {
                    self.last.note(args, throttle);
                }
                Read::Command(request)
            }
            Decoded::Nothing { length } => Read::Nothing { length },
            Decoded::Incomplete { .. } => Read::Incomplete,
        })
    }
}
