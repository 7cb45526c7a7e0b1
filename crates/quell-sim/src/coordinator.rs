//! Coordinator: a process with a clock around the core's coordinator.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Elected};
use quell_shares::message::CoordinatorId;
use quell_shares::mistake::Mistake;
use quell_shares::plan::{Drift, Record};

use crate::clock::Clock;
use crate::setup::SECOND;
use crate::store::{Ask, Reply};

/// The time to live of the leader's key.
pub const KEY_LASTS: Duration = Duration::from_secs(3);

/// A coordinator's process, or the place of one.
#[derive(Clone, Debug)]
pub struct Chair {
    /// Whether the process runs.
    pub alive: bool,
    /// Counts processes.
    pub life: u32,
    /// Its clock.
    pub clock: Clock,
    /// Nothing happens before this instant, except that what was being done is not sent either.
    pub paused: u64,
    /// The store hears nothing from it before this instant, nor it from the store.
    pub cut_off: u64,
    /// The state machine.
    pub core: Coordinator,
    asked: u64,
    /// The newest record that the watch brought: the one read at an election may be older.
    pub seen: Option<Record>,
    drift: Drift,
    mistake: Option<Mistake>,
}

impl Chair {
    /// A place without a process.
    #[must_use]
    pub fn new(drift: Drift, mistake: Option<Mistake>) -> Self {
        Self {
            alive: false,
            life: 0,
            clock: Clock::new(0, 0),
            paused: 0,
            cut_off: 0,
            core: Coordinator::new(drift, KEY_LASTS),
            asked: 0,
            seen: None,
            drift,
            mistake,
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
        self.core = Coordinator::new(self.drift, KEY_LASTS);
        self.core.set_mistake(self.mistake);
    }

    /// What to ask the store: once a second to keep the key, or to have it.
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

    /// Takes an answer of the store that is not about a write.
    pub fn told(&mut self, now: u64, reply: Reply) {
        let local = self.clock.local(now);
        match reply {
            Reply::Elected {
                epoch,
                asked,
                record,
                snapshot,
            } => self.core.elected(
                local,
                Elected {
                    epoch,
                    asked: Monotonic::from_nanos(asked),
                    record: match self.seen.take() {
                        Some(seen) if seen.version > record.version => seen,
                        _ => record,
                    },
                    snapshot,
                },
            ),
            Reply::Kept { epoch, asked } => self.core.kept(epoch, Monotonic::from_nanos(asked)),
            Reply::Lost => {
                self.core.follow(None);
                if self.mistake != Some(Mistake::DecideAfterDeadline) {
                    self.core.step_down();
                }
            }
            Reply::Taken(leader) => {
                let leader = u32::try_from(leader).ok().map(CoordinatorId);
                self.core.follow(leader);
            }
            Reply::Refused | Reply::Stored(_) => {}
        }
    }
}
