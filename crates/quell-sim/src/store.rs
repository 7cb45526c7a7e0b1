//! Store: the lock and configuration service, linearizable, with a key that it may take away early
//! or late.

use quell_shares::ledger::Snapshot;
use quell_shares::plan::Record;

/// What a coordinator asks.
#[derive(Clone, Debug)]
pub enum Ask {
    /// The key, if nobody has it.
    Campaign {
        /// When it was asked, on the asker's clock.
        asked: u64,
    },
    /// The key for longer.
    Keep {
        /// Whose key.
        epoch: u64,
        /// When it was asked, on the asker's clock.
        asked: u64,
    },
    /// A write under the key.
    Write {
        /// Whose key.
        epoch: u64,
        /// What to write.
        record: Record,
    },
    /// The key goes back, with a snapshot for the next leader.
    Resign {
        /// Whose key.
        epoch: u64,
        /// For the next leader.
        snapshot: Snapshot,
    },
}

/// What the store answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The key is yours.
    Elected {
        /// Unique and rising.
        epoch: u64,
        /// As it was asked.
        asked: u64,
        /// What is stored.
        record: Record,
        /// What the leader before left.
        snapshot: Option<Snapshot>,
    },
    /// The key stays yours.
    Kept {
        /// Whose key.
        epoch: u64,
        /// As it was asked.
        asked: u64,
    },
    /// Who has the key.
    Taken(usize),
    /// The key is not yours (any more).
    Lost,
    /// It is written.
    Stored(Record),
    /// Nothing was written.
    Refused,
}

/// The service.
#[derive(Clone, Debug)]
pub struct Store {
    /// What is stored.
    pub record: Record,
    key: Option<(usize, u64)>,
    expires: u64,
    revision: u64,
    snapshot: Option<Snapshot>,
    /// A mistake: what a leader left is given to every later one.
    pub keeps_snapshots: bool,
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
            keeps_snapshots: false,
            lasts,
        }
    }

    /// Takes the key away, whatever was promised.
    pub fn revoke(&mut self) {
        self.key = None;
    }

    /// Keeps the key for longer than was promised.
    pub fn linger(&mut self, nanos: u64) {
        self.expires += nanos;
    }

    /// Who has the key.
    #[must_use]
    pub fn leader(&self, now: u64) -> Option<usize> {
        self.key.filter(|_| now < self.expires).map(|(who, _)| who)
    }

    /// Answers, and says whether the record changed.
    pub fn ask(&mut self, now: u64, who: usize, ask: Ask) -> (Option<Reply>, bool) {
        if now >= self.expires {
            self.key = None;
        }
        let holds = |store: &Self, epoch: u64| store.key == Some((who, epoch));
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
                    snapshot: if self.keeps_snapshots {
                        self.snapshot.clone()
                    } else {
                        self.snapshot.take()
                    },
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
            Ask::Write { epoch, record } => {
                if !holds(self, epoch) || record.version != self.record.version + 1 {
                    return (Some(Reply::Refused), false);
                }
                self.record = record.clone();
                (Some(Reply::Stored(record)), true)
            }
            Ask::Resign { epoch, snapshot } => {
                if holds(self, epoch) {
                    self.key = None;
                    self.snapshot = Some(snapshot);
                }
                (None, false)
            }
        }
    }

    /// The console writes.
    pub fn edit(&mut self, edit: impl FnOnce(&mut Record)) {
        edit(&mut self.record);
        self.record.version += 1;
    }
}
