//! Slots: claims on a cluster, where an id that a caller makes up does not say who knows it.
//!
//! ```text
//! point --> claim                                   one slot: one script decides, waiting included
//! point + look at every limit --> claim each --> say that all are held     several slots
//!                                      '--one refuses--> take back the others
//! ```
//!
//! A pointer in the id's own slot says where its records lie: what ends a hold goes there. It is written
//! first, and skipped where nobody else will end what is claimed (an acquire that waits), so that this
//! stays one trip.
//!
//! In several slots every charge is a hold at first, which can be taken back exactly; limits that are
//! charged for good lose it when all have passed. Nobody stands in several lines at once: where a limit
//! says wait, the set is refused. Attempts at the same id are counted: who comes later finds what who
//! came before it charged, takes it over, and nobody takes back what is somebody else's by now.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use quell_core::hold::{Claim, HoldId};
use quell_core::time::Now;
use redis::Value;

mod known;
mod pointer;
mod spot;
mod spread;

pub(crate) use pointer::{Pointer, Remembered};
pub(crate) use spot::Spot;

use crate::asked::{Asked, strange};
use crate::hold::{Claimed, Trouble, keep_of};
use crate::link::Failure;
use crate::store::RedisStore;
use pointer::MOST_STATES;
use quell::store::StoreError;
pub(crate) use spread::Part;
use spread::Spread;

/// How often a pointer is written while others write it, too.
const MOST_TRIES: usize = 5;

/// Pauses after which a claim is made again that another attempt at the same overtook: longer than that
/// takes for the rest of its way.
const OVERTAKEN: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::ZERO,
];

/// How long a claim may wait before its pointer has to stand for longer.
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// What is said to a set that is wider than an answer.
const TOO_WIDE: &str = "one query holds at most 256 limits on a cluster: ask for them in several";

/// Whether an id may be asked for.
enum Pointing {
    /// It may, and points here.
    Free(Pointer),
    /// It was, and this is the answer.
    Answered(Claimed),
}

impl RedisStore {
    /// Makes a claim on a cluster.
    pub(crate) async fn claim_in_slots(
        &self,
        asked: &Asked<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Claimed, Trouble> {
        if asked.names.len() > MOST_STATES {
            return Err(Trouble::Refused(StoreError::Unable(TOO_WIDE)));
        }
        let group = match asked.groups.as_slice() {
            [] => return self.claim_nothing(asked, claim, now).await,
            [group] => group,
            _ => return self.claim_spread(asked, claim, now).await,
        };
        let pointer = match self.point(asked, claim, now).await? {
            Pointing::Answered(claimed) => return Ok(claimed),
            Pointing::Free(pointer) => pointer,
        };
        let spot = self.spot(claim.id, asked.names.clone());
        let claimed = self.claim_at(asked, group, claim, &spot.record, None, now);
        let claimed = self.in_time(&spot.record, claimed).await?;
        let longest = claimed.longest();
        if longest > FIRST_WAIT {
            self.prolong(claim.id, &pointer, longest).await;
        }
        Ok(claimed)
    }

    /// Makes a claim in several slots. Who is overtaken by another attempt at the same looks again a
    /// little later what became of that.
    async fn claim_spread(
        &self,
        asked: &Asked<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Claimed, Trouble> {
        for pause in OVERTAKEN {
            if let Some(claimed) = Spread::claim(self, asked, claim, now).await? {
                return Ok(claimed);
            }
            // Not all at the same moment.
            let share = u32::try_from(any() % 256).unwrap_or(0);
            tokio::time::sleep(pause + pause * share / 256).await;
        }
        Ok(Claimed::taken())
    }

    /// Answers a claim on no limits: there is nothing to hold, and perhaps the id is known.
    async fn claim_nothing(
        &self,
        asked: &Asked<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Claimed, Trouble> {
        let earlier = match self.remembered.get(claim.id) {
            Some(remembered) => Some(Pointer::clone(&remembered)),
            None if claim.hold.is_some() => self.pointer(claim.id).await?,
            None => None,
        };
        let Some(earlier) = earlier else {
            return Ok(Claimed::default());
        };
        let known = self.known(&earlier, asked, claim, now).await?;
        Ok(known.unwrap_or_default())
    }

    /// Writes where the id of a claim points to, unless nobody else will end it or it is known.
    async fn point(
        &self,
        asked: &Asked<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Pointing, Trouble> {
        let keep = keep_of(asked.set, claim).unwrap_or_default();
        let is_one = asked.groups.len() == 1;
        let remembered = self.remembered.get(claim.id);
        let mut expected = remembered.as_ref().map(|pointer| pointer.write());
        let mut seen = remembered.as_ref().map(|pointer| Pointer::clone(pointer));
        for _ in 0..MOST_TRIES {
            let mut new = Pointer {
                attempt: 1,
                nonce: if is_one { 0 } else { any() },
                keep,
                answer: None,
                states: asked.names.clone(),
            };
            if let Some(earlier) = &seen {
                let is_here = is_one && self.is_one_slot(&earlier.states, &asked.names);
                if !is_here && let Some(claimed) = self.known(earlier, asked, claim, now).await? {
                    return Ok(Pointing::Answered(claimed));
                }
                new.attempt = earlier.attempt.saturating_add(1);
                new.keep = keep.max(earlier.keep);
                new.add(&earlier.states);
                // The script finds out whether it is known.
                if is_here && earlier.has(&new.states) && earlier.keep >= keep {
                    new = earlier.clone();
                }
            }
            if new.states.len() > MOST_STATES {
                return Ok(Pointing::Answered(Claimed::taken()));
            }
            let written = match keep.is_zero() {
                true => None,
                false => {
                    let expected = expected.as_deref().unwrap_or_default();
                    let first = claim.wait.map_or(Duration::ZERO, |wait| wait.in_all);
                    let first = first.min(FIRST_WAIT);
                    self.write_pointer(claim.id, expected, &new, first).await?
                }
            };
            let Some(was) = written else {
                self.remembered.set(claim.id, new.clone());
                return Ok(Pointing::Free(new));
            };
            let mut earlier = spot::read(&was)?;
            expected = Some(was);
            if let Some(remembered) = &remembered {
                earlier.add(&remembered.states);
            }
            seen = Some(earlier);
        }
        Err(Trouble::Refused(StoreError::HoldTaken))
    }

    fn is_one_slot(&self, states: &[Vec<u8>], others: &[Vec<u8>]) -> bool {
        let mut slots = states
            .iter()
            .chain(others)
            .map(|state| self.link.group_of(state));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Lets a pointer stand as long as what begins to be held after `wait`. Should that fail it stands
    /// for three minutes longer than the lease that is renewed, and the next renewal tries again.
    pub(crate) async fn prolong(&self, id: &HoldId, pointer: &Pointer, wait: Duration) {
        if pointer.keep.is_zero() {
            return;
        }
        let written = pointer.write();
        if let Err(failure) = self.write_pointer(id, &written, pointer, wait).await {
            tracing::debug!(%failure, ?id, "where it points to is not written anew");
        }
    }

    /// Writes a pointer if nothing stands there or what is expected; else returns what does.
    async fn write_pointer(
        &self,
        id: &HoldId,
        expected: &[u8],
        pointer: &Pointer,
        wait: Duration,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let name = self.names.pointer(id.as_bytes());
        if let Some(rehearsal) = &self.rehearsal {
            rehearsal.noted([name.clone()]);
        }
        let written = pointer.write();
        let expiry = pointer.expiry(wait).max(self.shortest_expiry());
        let keys = [name];
        let [name] = &keys;
        let arguments = [
            expiry.to_string().into_bytes(),
            expected.to_vec(),
            written.clone(),
        ];
        let run = self.scripts.point.run(&self.link, &keys, &arguments);
        match self.in_time(name, run).await? {
            Value::BulkString(stands) if stands == written => Ok(None),
            Value::BulkString(stands) => Ok(Some(stands)),
            reply => Err(strange(&reply)),
        }
    }
}

/// Any number.
fn any() -> u64 {
    RandomState::new().hash_one(0_u8)
}
