//! Coordinator: a process with a clock, which runs the coordinator state machine.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Effect, Elected, Why};
use quell_shares::message::CoordinatorId;
use quell_shares::plan::{Drift, Record};

use crate::clock::Clock;
use crate::setup::SECOND;
use crate::store::{Ask, Reply};

/// The time to live of the leader's key.
pub const KEY_LASTS: Duration = Duration::from_secs(3);

/// A coordinator's process, or the place for one that is down.
#[derive(Clone, Debug)]
pub struct Chair {
    /// True while the process runs.
    pub alive: bool,
    /// Number of processes started so far.
    pub life: u32,
    /// Its clock.
    pub clock: Clock,
    /// The process does nothing before this instant; messages that it was about to send wait
    /// too.
    pub paused: u64,
    /// Instant before which nothing passes between the process and the store.
    pub cut_off: u64,
    /// The state machine.
    pub core: Coordinator,
    asked: u64,
    /// The newest record that the watch delivered; the record read at an election may be older.
    pub seen: Option<Record>,
    /// The version of a record that was found to be older than the one that the leader knows: its next
    /// write replaces that.
    pub over: Option<u64>,
    drift: Drift,
}

impl Chair {
    /// A place whose process is not running.
    #[must_use]
    pub fn new(drift: Drift) -> Self {
        Self {
            alive: false,
            life: 0,
            clock: Clock::new(0, 0),
            paused: 0,
            cut_off: 0,
            core: Coordinator::new(drift, KEY_LASTS),
            asked: 0,
            seen: None,
            over: None,
            drift,
        }
    }

    /// Starts a process.
    pub fn start(&mut self, clock: Clock) {
        self.alive = true;
        self.life += 1;
        self.clock = clock;
        self.paused = 0;
        self.asked = 0;
        self.seen = None;
        self.over = None;
        self.core = Coordinator::new(self.drift, KEY_LASTS);
    }

    /// Request for the store: once a second, to keep the key or to get it.
    pub fn asks(&mut self, now: u64) -> Option<Ask> {
        let local = self.clock.local(now);
        if now < self.asked + SECOND {
            return None;
        }
        self.asked = now;
        let asked = local.as_nanos();
        Some(match self.core.leads(local) {
            Some(ledger) => Ask::Keep {
                epoch: ledger.epoch(),
                asked,
            },
            None => Ask::Campaign { asked },
        })
    }

    /// Handles a reply of the store, other than a reply to a write.
    pub fn receive(&mut self, now: u64, reply: Reply, effects: &mut Vec<Effect>) {
        let local = self.clock.local(now);
        match reply {
            Reply::Elected {
                epoch,
                asked,
                record,
                snapshot,
            } => {
                let version = record.version;
                let elected = Elected {
                    revision: epoch,
                    asked: Monotonic::from_nanos(asked),
                    record,
                    snapshot,
                };
                self.core.elected(local, elected);
                // The watch may know more.
                if let Some(seen) = self.seen.take().filter(|seen| seen.version > version) {
                    self.core.stored(local, seen, effects);
                }
            }
            Reply::Kept { epoch, asked } => self.core.kept(epoch, Monotonic::from_nanos(asked)),
            Reply::Lost => {
                self.core.follow(None);
                self.core.step_down(Why::KeyLost, effects);
            }
            Reply::Verified { asked, record } => {
                let asked = Monotonic::from_nanos(asked);
                let known = self.core.leads(local).map(|l| l.record().version);
                let is_older = known.is_some_and(|known| record.version < known);
                self.over = is_older.then_some(record.version);
                self.core.verified(local, asked, record, effects);
            }
            Reply::Taken(leader) => {
                let leader = u32::try_from(leader).ok().map(CoordinatorId);
                self.core.follow(leader);
            }
            Reply::Refused => self.core.refused(local, effects),
            Reply::Stored(_) => {}
        }
    }
}
