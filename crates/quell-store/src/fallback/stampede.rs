//! Stampede gate: callers on a key whose cached denial is over.
//!
//! Without it, all callers that were refused from the cache would go to the store at the same moment, and
//! most of them would be refused again. So one of them probes, and its answer decides how the others go
//! on:
//!
//! ```text
//! refused ------> all read the cache again: most are answered from it, the others go to the store
//! allowed ------> as many more go as the answer says would fit, and at least one more than before
//! no answer ----> all go, [`MAX_PROBES`] at a time, and get their fallback answers
//! cancelled ----> the next one probes
//! ```
//!
//! The gate itself answers nothing: a caller that waited reads the cache as if it had just arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::sync::Mutex;

/// Calls that ask about one key at a time: as many as are sent to the store together.
const MAX_PROBES: usize = 256;

/// Calls on one key.
#[derive(Debug, Default)]
pub(super) struct StampedeGate {
    state: Mutex<StampedeState>,
}

#[derive(Debug, Default)]
struct StampedeState {
    probing: usize,
    /// Number of callers that may ask at a time, besides the first.
    more: usize,
    /// Waiting callers, in order of arrival.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeAnswer {
    Refusal,
    /// The call passed, and this many more calls like it would pass.
    Room(u64),
    /// The store did not answer.
    Nothing,
}

/// The right to ask, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    gate: Arc<StampedeGate>,
    heard: Option<ProbeAnswer>,
}

impl StampedeGate {
    /// Waits for permission to ask. `None`: there is a new answer, so the cache has to be read again.
    pub(super) async fn turn(self: &Arc<Self>) -> Option<Turn> {
        let turn = {
            let mut state = self.state.lock();
            if state.probing <= state.more && state.waiting.is_empty() {
                state.probing += 1;
                return Some(self.begin());
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push_back(sender);
            turn
        };
        turn.await.ok()
    }

    fn begin(self: &Arc<Self>) -> Turn {
        Turn {
            gate: Arc::clone(self),
            heard: None,
        }
    }

    /// Ends the turn of a caller that got this answer.
    fn end(self: &Arc<Self>, heard: Option<ProbeAnswer>) {
        let mut state = self.state.lock();
        state.probing = state.probing.saturating_sub(1);
        let more = match heard {
            None => 0,
            Some(ProbeAnswer::Refusal) => 1,
            Some(ProbeAnswer::Room(room)) => {
                usize::try_from(room).map_or(MAX_PROBES, |room| room.max(1))
            }
            Some(ProbeAnswer::Nothing) => MAX_PROBES,
        };
        state.more = state.more.saturating_add(more).min(MAX_PROBES - 1);
        let mut next = Vec::new();
        let has_news = matches!(heard, Some(ProbeAnswer::Refusal | ProbeAnswer::Nothing));
        let all = has_news.then(|| std::mem::take(&mut state.waiting));
        while state.probing <= state.more
            && let Some(waiting) = state.waiting.pop_front()
        {
            if !waiting.is_closed() {
                state.probing += 1;
                next.push((waiting, self.begin()));
            }
        }
        drop(state);
        drop(all);
        for (waiting, turn) in next {
            // If the waiting caller went away meanwhile, dropping the turn passes it on.
            let _ = waiting.send(turn);
        }
    }
}

impl Turn {
    /// Ends the turn with this answer.
    pub(super) fn end(mut self, heard: ProbeAnswer) {
        self.heard = Some(heard);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate.end(self.heard);
    }
}
