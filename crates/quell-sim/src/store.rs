//! Store: the linearizable lock and configuration service. It may take the leader's key away early
//! or late.

use quell_shares::generation;
use quell_shares::ledger::Snapshot;
use quell_shares::plan::Record;

/// A request of a coordinator.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "writes are few")]
pub enum Ask {
    /// Asks for the key, if no one has it.
    Campaign {
        /// Time of the request, on the coordinator's clock.
        asked: u64,
    },
    /// Keeps the key for longer.
    Keep {
        /// Epoch of the key.
        epoch: u64,
        /// Time of the request, on the coordinator's clock.
        asked: u64,
    },
    /// A write under the key.
    Write {
        /// Epoch of the key.
        epoch: u64,
        /// Record to write.
        record: Record,
        /// The version of the record that it is to replace.
        over: u64,
    },
    /// Gives the key back, with a snapshot for the next leader.
    Resign {
        /// Epoch of the key.
        epoch: u64,
        /// The snapshot, if there is one.
        snapshot: Option<Snapshot>,
    },
    /// Reads the key and the record.
    Verify {
        /// Epoch of the key.
        epoch: u64,
        /// Time of the request, on the coordinator's clock.
        asked: u64,
    },
}

/// A reply of the store.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The coordinator has the key.
    Elected {
        /// Unique and rising.
        epoch: u64,
        /// Time of the request, copied from it.
        asked: u64,
        /// The stored record.
        record: Record,
        /// The snapshot of the previous leader.
        snapshot: Option<Snapshot>,
    },
    /// The coordinator keeps the key.
    Kept {
        /// Epoch of the key.
        epoch: u64,
        /// Time of the request, copied from it.
        asked: u64,
    },
    /// The coordinator still has the key.
    Verified {
        /// Time of the request, copied from it.
        asked: u64,
        /// The stored record.
        record: Record,
    },
    /// This coordinator has the key.
    Taken(usize),
    /// The coordinator does not have the key, or no longer.
    Lost,
    /// The record was written.
    Stored(Record),
    /// Nothing was written.
    Refused,
}

/// The service.
#[derive(Clone, Debug)]
pub struct Store {
    /// The stored record.
    pub record: Record,
    key: Option<(usize, u64)>,
    expires: u64,
    revision: u64,
    snapshot: Option<Snapshot>,
    /// Nanoseconds that a key lasts without a keep-alive.
    pub lasts: u64,
}

impl Store {
    /// A store without a leader.
    #[must_use]
    pub const fn new(record: Record, lasts: u64) -> Self {
        Self {
            record,
            key: None,
            expires: 0,
            revision: 0,
            snapshot: None,
            lasts,
        }
    }

    /// This backup as a store: the key is in it, if one was, for its full time.
    #[must_use]
    pub const fn restored(mut self, now: u64, bump: bool) -> Self {
        self.expires = now + self.lasts;
        if bump {
            self.revision += 1_000_000;
        }
        self
    }

    /// Takes the key away, whatever was promised.
    pub fn revoke(&mut self) {
        self.key = None;
    }

    /// Keeps the key for longer than was promised.
    pub fn linger(&mut self, nanos: u64) {
        self.expires += nanos;
    }

    /// The coordinator that has the key.
    #[must_use]
    pub fn leader(&self, now: u64) -> Option<usize> {
        self.key.filter(|_| now < self.expires).map(|(who, _)| who)
    }

    /// Handles a request. Returns the reply, and whether the record changed.
    pub fn ask(&mut self, now: u64, who: usize, ask: Ask) -> (Option<Reply>, bool) {
        if now >= self.expires {
            self.key = None;
        }
        let holds = |store: &Self, epoch| store.key == Some((who, generation::within(epoch)));
        match ask {
            Ask::Campaign { asked } => {
                if let Some((leader, _)) = self.key {
                    return (Some(Reply::Taken(leader)), false);
                }
                self.revision += 1;
                self.key = Some((who, self.revision));
                self.expires = now + self.lasts;
                let reply = Reply::Elected {
                    epoch: self.revision,
                    asked,
                    record: self.record.clone(),
                    snapshot: self.snapshot.take(),
                };
                (Some(reply), false)
            }
            Ask::Keep { epoch, asked } => {
                if !holds(self, epoch) {
                    return (Some(Reply::Lost), false);
                }
                self.expires = self.expires.max(now + self.lasts);
                (Some(Reply::Kept { epoch, asked }), false)
            }
            Ask::Write {
                epoch,
                record,
                over,
            } => {
                if !holds(self, epoch) || over != self.record.version {
                    return (Some(Reply::Refused), false);
                }
                self.record = record.clone();
                (Some(Reply::Stored(record)), true)
            }
            Ask::Resign { epoch, snapshot } => {
                if holds(self, epoch) {
                    self.key = None;
                    self.snapshot = snapshot;
                }
                (None, false)
            }
            Ask::Verify { epoch, asked } => {
                let record = self.record.clone();
                let held = holds(self, epoch);
                let reply = if held {
                    Reply::Verified { asked, record }
                } else {
                    Reply::Lost
                };
                (Some(reply), false)
            }
        }
    }

    /// Changes the record, as the console would.
    pub fn edit(&mut self, edit: impl FnOnce(&mut Record)) {
        edit(&mut self.record);
        self.record.version += 1;
    }
}
