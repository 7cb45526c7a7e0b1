//! Bounds: what clients may take of the server, each with the reason for its default.

use std::time::Duration;

use quell_protocol::resp::FrameLimits;

/// Bounds on what clients may take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Most connections of each listener; who comes when it is full is told so. Default 10,000, as
    /// Redis has it: idle ones cost a few kilobytes each.
    pub connections: usize,
    /// Longest body of an HTTP request, in bytes. Default 256 KiB: 16 descriptors of 64 short
    /// entries are a tenth of it.
    pub body: usize,
    /// Longest argument of a RESP command, in bytes. Default 64 KiB: keys are names, not documents.
    pub argument: usize,
    /// Longest RESP command, in bytes. Default 256 KiB: what a half-sent command may hold.
    pub frame: usize,
    /// Replies that a RESP connection may leave unread before its commands have to wait, in bytes.
    /// Default 1 MiB: with what the kernel holds, a client can send a hundred thousand commands
    /// before it reads the first reply; one that reads as it writes can send any number.
    pub unsent: usize,
    /// Bytes that buffers of all connections may have together, for half-sent commands and bodies and
    /// unread replies; the connection that would need more is told so and closed. Default 256 MiB: a
    /// thousand of the longest commands, or a quarter of a small machine.
    pub buffers: usize,
    /// How long the head of the first request of an HTTP connection may take to arrive, from accept
    /// on. Default 10 s: a slow phone needs two, and who connects has something to ask.
    pub header_timeout: Duration,
    /// How long the body of an HTTP request may take to arrive. Default 10 s, for the same reason.
    pub body_timeout: Duration,
    /// How long an HTTP connection may take for its next head, silence included, and how long it may
    /// leave an answer unread. Default 75 s, as nginx keeps connections: gateways must not lose a
    /// race against us.
    pub idle_timeout: Duration,
    /// How long a RESP connection may leave a command half sent or a reply unread; between commands
    /// it may be silent for ever, as with Redis, since clients keep pools. Default 60 s.
    pub stall_timeout: Duration,
    /// How long a server that is told to stop goes on serving, not ready, while clients go elsewhere;
    /// it ends sooner once no connection is open. Default 5 s: gateways look every few seconds whether
    /// a server is ready.
    pub drain_timeout: Duration,
    /// How long a shutdown waits for what is in flight, after that. Default 10 s: well within the 30 s that
    /// container platforms give.
    pub shutdown_grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body: 256 * 1_024,
            argument: 64 * 1_024,
            frame: 256 * 1_024,
            unsent: 1_024 * 1_024,
            buffers: 256 * 1_024 * 1_024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl Bounds {
    /// The bounds of a RESP frame.
    pub(crate) fn frame_limits(&self) -> FrameLimits {
        FrameLimits {
            max_bulk: self.argument,
            max_line: self.argument,
            max_frame: self.frame,
            ..FrameLimits::default()
        }
    }
}
