//! Crowd: calls on a key whose remembered refusal is over.
//!
//! All who were answered from that refusal would ask the store at the same moment, and most of them
//! would be refused again. So one asks, and the others wait for what it hears:
//!
//! ```text
//! refused ------> all look again at what is known: most are answered from it, the others ask
//! allowed ------> as many more ask as are said to fit, and at least one more than before
//! no answer ----> all ask, [`MOST`] at a time: each is answered what its rules declare
//! gone away ----> the next one asks
//! ```
//!
//! Nobody is answered anything here: whoever waited looks at what is known as if it had come only now.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::sync::Mutex;

/// Calls that ask about one key at a time: as many as go together to the store.
const MOST: usize = 256;

/// Calls on one key.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    asking: usize,
    /// How many may ask at a time, besides the first.
    more: usize,
    /// The first to come is the first to ask.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// What a call heard that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrowdNews {
    Refusal,
    /// It passed, and so many more like it would.
    Room(u64),
    /// The store did not answer.
    Nothing,
}

/// Leave to ask, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    crowd: Arc<Crowd>,
    heard: Option<CrowdNews>,
}

impl Crowd {
    /// Waits for leave to ask. `None`: there is news, so what is known has to be looked at again.
    pub(super) async fn turn(self: &Arc<Self>) -> Option<Turn> {
        let turn = {
            let mut state = self.state.lock();
            if state.asking <= state.more && state.waiting.is_empty() {
                state.asking += 1;
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
            crowd: Arc::clone(self),
            heard: None,
        }
    }

    /// Ends the turn of one that heard this.
    fn end(self: &Arc<Self>, heard: Option<CrowdNews>) {
        let mut state = self.state.lock();
        state.asking = state.asking.saturating_sub(1);
        let more = match heard {
            None => 0,
            Some(CrowdNews::Refusal) => 1,
            Some(CrowdNews::Room(room)) => usize::try_from(room).map_or(MOST, |room| room.max(1)),
            Some(CrowdNews::Nothing) => MOST,
        };
        state.more = state.more.saturating_add(more).min(MOST - 1);
        let mut next = Vec::new();
        let has_news = matches!(heard, Some(CrowdNews::Refusal | CrowdNews::Nothing));
        let all = has_news.then(|| std::mem::take(&mut state.waiting));
        while state.asking <= state.more
            && let Some(waiting) = state.waiting.pop_front()
        {
            if !waiting.is_closed() {
                state.asking += 1;
                next.push((waiting, self.begin()));
            }
        }
        drop(state);
        drop(all);
        for (waiting, turn) in next {
            // Whoever went away meanwhile hands it on as the turn is dropped.
            let _ = waiting.send(turn);
        }
    }
}

impl Turn {
    /// Ends it.
    pub(super) fn end(mut self, heard: CrowdNews) {
        self.heard = Some(heard);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.crowd.end(self.heard);
    }
}
