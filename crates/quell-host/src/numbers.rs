//! Numbers of a process and of its listeners, which metrics show.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_protocol::callers::NoPlace;

/// The numbers of a listener.
#[derive(Debug, Default)]
pub struct ListenerMetrics {
    /// Connections that are open.
    pub open: Number,
    /// Connections so far.
    pub accepted: Number,
    /// Connections that were refused.
    pub refused: Refusals,
    /// Requests or frames that could not be decoded.
    pub protocol_errors: Number,
    /// Tokens that nobody has.
    pub failed_logins: Number,
    /// Connections that ended because a timeout was over.
    pub timeouts: Number,
    /// Handshakes of TLS that failed, and clients that did not begin one.
    pub tls_errors: Number,
    /// Connections that ended by a panic; there should be none.
    pub panics: Number,
}

/// Reason why a connection is refused or ended: the resource that has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many connections as the listener may have.
    Listener,
    /// As many as an address may have.
    Address,
    /// No memory for buffers.
    Buffers,
}

/// Connections that were refused or ended, for each reason.
#[derive(Debug, Default)]
pub struct Refusals([Number; Refused::ALL.len()]);

impl From<NoPlace> for Refused {
    fn from(full: NoPlace) -> Self {
        match full {
            NoPlace::Listener => Self::Listener,
            NoPlace::Address => Self::Address,
        }
    }
}

impl Refused {
    const ALL: [Self; 3] = [Self::Listener, Self::Address, Self::Buffers];

    /// The setting whose bound is reached.
    const fn setting(self) -> &'static str {
        match self {
            Self::Listener => "max_connections",
            Self::Address => "max_connections_per_address",
            Self::Buffers => "max_buffer_bytes",
        }
    }
}

impl Refusals {
    /// Counts one.
    pub fn add(&self, refused: Refused) {
        if let Some(number) = self.0.get(refused as usize) {
            number.add(1);
        }
    }

    /// The settings, and how many connections were refused because of each.
    pub fn by_setting(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(Number::get);
        Refused::ALL.into_iter().map(Refused::setting).zip(counts)
    }
}

/// A number that changes too seldom to need a [`Tally`](crate::tally::Tally).
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds to the number.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Replaces the number by nanoseconds.
    pub fn set_duration(&self, value: Duration) {
        self.set(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
