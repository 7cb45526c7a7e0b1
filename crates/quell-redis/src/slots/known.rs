//! Known: what is known of an id that was asked for before.

use std::time::Duration;

use futures_util::future::join_all;
use quell_core::hold::{Claim, HoldId};
use quell_core::time::Now;
use redis::Value;

use super::pointer::Pointer;
use super::spot::Spot;
use crate::answer::{Reply, Said};
use crate::asked::{Asked, strange};
use crate::hold::Claimed;
use crate::link::Failure;
use crate::store::{RedisStore, Request};
use crate::ticks::MOST_UNITS;

/// What one slot knows of an id.
struct Known {
    stands: bool,
    /// Whether it is a part of a set that spans slots.
    is_part: bool,
    /// Names and units.
    places: Vec<(Vec<u8>, u64)>,
    answer: Vec<Said>,
    clock: u64,
}

impl Known {
    /// `None` if that is no reply; `Some(None)` if nothing is known.
    fn read(reply: &Value) -> Option<Option<Self>> {
        let mut reply = Reply::of(reply)?;
        let clock = reply.natural()?;
        let Ok(fate) = u64::try_from(reply.number()?) else {
            return Some(None);
        };
        let is_part = reply.natural()? != 0;
        let count = reply.natural()?;
        let mut place = |_| Some((reply.bytes()?.to_vec(), reply.natural()?));
        let places = (0..count).map(&mut place).collect::<Option<_>>()?;
        let mut answer = Vec::new();
        while !reply.is_over() {
            answer.push(Said::read(&mut reply, clock)?);
        }
        Some(Some(Self {
            stands: fate == 0,
            is_part,
            places,
            answer,
            clock,
        }))
    }
}

impl RedisStore {
    /// What is answered to a claim since its id is known where `earlier` points to; `None` if it is
    /// not, or an attempt at the same never came to its end.
    pub(super) async fn known(
        &self,
        earlier: &Pointer,
        asked: &Asked<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Option<Claimed>, Failure> {
        let spots = self.spots(claim.id, &earlier.states);
        let looks = spots.iter().map(|spot| self.look(claim.id, spot, now));
        let mut known = Vec::new();
        for look in join_all(looks).await {
            known.extend(look?);
        }
        if known.is_empty() {
            return Ok(None);
        }
        let places = || known.iter().flat_map(|known| &known.places);
        let mut standing = known.iter().filter(|known| known.stands).peekable();
        let Some(clock) = standing.peek().map(|known| known.clock) else {
            return Ok(Some(Claimed::taken()));
        };
        let said = match &earlier.answer {
            Some(answer) => Said::read_all(answer, clock),
            None => standing
                .find(|known| !known.is_part)
                .map(|known| known.answer.clone()),
        };
        let Some(said) = said else {
            // Nobody was told yet that all is held. Whoever asks for the same goes on with it.
            let is_same = places().all(|place| asked.names.contains(&place.0));
            return Ok((!is_same).then(Claimed::taken));
        };
        let is_same = asked
            .set
            .charges()
            .iter()
            .zip(&asked.names)
            .all(|(charge, name)| {
                let is_for_good = claim.hold.is_none() && charge.installed.limit.lease().is_none();
                let units = charge.cost.get().min(MOST_UNITS);
                let is_it = |place: &(Vec<u8>, u64)| place.0 == *name && place.1 == units;
                charge.shadow || is_for_good || places().any(is_it)
            });
        Ok(Some(match is_same {
            true => Claimed::again(said, clock),
            false => Claimed::taken(),
        }))
    }

    async fn look(&self, id: &HoldId, spot: &Spot, now: Now) -> Result<Option<Known>, Failure> {
        let head = self.head(Request::Known, Duration::ZERO, now);
        let arguments = [head, Vec::new(), id.as_bytes().to_vec()];
        let keys = std::slice::from_ref(&spot.record);
        let run = self.scripts.hold.run(&self.link, keys, &arguments);
        let reply = self.in_time(&spot.record, run).await?;
        Known::read(&reply).ok_or_else(|| strange(&reply))
    }
}
