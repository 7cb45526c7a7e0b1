//! Waiting on one key without rules: how [`KeyedLimiter`](crate::KeyedLimiter) and its twin do it.

use std::time::Duration;

use quell_core::charge::{Charge, Entry, Operation, decide_one};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::{self, Claim, Ended, Ending, HoldId, Patience};
use quell_core::state::State;
use quell_core::time::Now;

use crate::clock::Clock;
use crate::holding::new_id;
use crate::room::{Call, Room};

/// One key of one limit.
pub(crate) trait Line {
    /// Works on its state, under its lock, at the present instant.
    fn with<R>(&self, work: impl FnOnce(Now, &Charge<'_>, &mut State) -> R) -> R;
}

/// Gives back the place, and what was charged for it, of a caller that is gone before its turn.
struct Leaving<'a, L: Line> {
    line: &'a L,
    room: &'a Room,
    id: HoldId,
    is_placed: bool,
}

impl<L: Line> Leaving<'_, L> {
    fn end(&self, ending: Ending) -> (Now, Ended) {
        self.line.with(|now, charge, state| {
            let limit = &charge.installed.limit;
            let ended = hold::end(state, limit, &charge.at(now), &self.id, ending, true);
            (now, ended)
        })
    }
}

impl<L: Line> Drop for Leaving<'_, L> {
    fn drop(&mut self) {
        self.room.leave(&self.id);
        if self.is_placed {
            let (_, ended) = self.end(Ending::Cancel);
            self.room.call(ended.next.as_slice());
        }
    }
}

/// Waits for a turn that comes within `most`; refused at once if it does not.
pub(crate) async fn acquire(
    line: &impl Line,
    room: &Room,
    clock: &impl Clock,
    most: Duration,
) -> Decision {
    let id = new_id("");
    let has_seat = room.enter(&id);
    let mut leaving = Leaving {
        line,
        room,
        id: id.clone(),
        is_placed: false,
    };
    let claim = Claim {
        id: &id,
        hold: None,
        wait: Some(Patience::of(if has_seat { most } else { Duration::ZERO })),
        is_named: false,
    };
    let (began, decision, turn) = line.with(|now, charge, state| {
        let entry = Entry { charge, state };
        let claimed = hold::claim(now, &claim, &mut [entry]);
        let wait = claimed.as_ref().and_then(|claimed| claimed.wait);
        let decision = claimed.and_then(|claimed| claimed.decisions.first().copied());
        (now, decision, wait.unwrap_or_default())
    });
    let Some(decision) = decision else {
        return refused(line);
    };
    if !decision.outcome.is_allow() || decision.delay.is_zero() {
        return decision;
    }
    leaving.is_placed = true;
    let after = decision.delay.saturating_sub(turn);
    let mut turn = began.monotonic.saturating_add(decision.delay);
    loop {
        if room.wait(&id, turn, clock).await == Call::Moved {
            let moved = line.with(|now, charge, state| {
                let entry = Entry { charge, state };
                hold::advance(now, &id, &mut [entry]).map(|(wait, next)| (now, wait, next))
            });
            if let Some((now, wait, next)) = moved {
                turn = now.monotonic.saturating_add(wait).saturating_add(after);
                room.call(&next);
            }
            continue;
        }
        let (now, ended) = leaving.end(Ending::Arrive);
        match ended.wait {
            Some(wait) => turn = now.monotonic.saturating_add(wait).saturating_add(after),
            None => {
                leaving.is_placed = false;
                let waited = decision.waited_for(now.monotonic.since(began.monotonic));
                return waited.with_numbers_of(&peek(line));
            }
        }
    }
}

/// What a key says that has as many holds as may be: not now.
fn refused(line: &impl Line) -> Decision {
    let decision = peek(line);
    let wait = RetryAfter::After(Duration::from_secs(1));
    Decision {
        outcome: match decision.outcome {
            Outcome::Allow => Outcome::Deny(wait),
            outcome => outcome,
        },
        ..decision
    }
}

fn peek(line: &impl Line) -> Decision {
    line.with(|now, charge, state| decide_one(now, Operation::Peek, &mut Entry { charge, state }))
}
