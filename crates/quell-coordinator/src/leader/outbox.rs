//! Outbox: what a coordinator has for a member, in order.

use std::collections::HashMap;

use quell_shares::message::Response;
use quell_shares::plan::MemberId;
use tokio::sync::mpsc;

/// The most messages that wait for a connection: an answer and a push, since a member that reads leaves none. What is
/// more is dropped: the member reports again.
const BACKLOG: usize = 2;

/// The answers and pushes for one member.
#[derive(Debug)]
pub struct Outbox {
    messages: mpsc::Receiver<Response>,
}

impl Outbox {
    /// The next message; `None` when the member has another connection, or the coordinator has stopped.
    pub async fn next(&mut self) -> Option<Response> {
        self.messages.recv().await
    }
}

/// The outboxes of all members that are connected.
#[derive(Debug, Default)]
pub(super) struct Outboxes {
    members: HashMap<MemberId, mpsc::Sender<Response>>,
}

impl Outboxes {
    /// Opens an outbox in place of the one that the member had.
    pub(super) fn connect(&mut self, member: MemberId) -> Outbox {
        let (sender, messages) = mpsc::channel(BACKLOG);
        self.members.insert(member, sender);
        Outbox { messages }
    }

    /// Puts a message into a member's outbox, if there is room.
    pub(super) fn send(&mut self, member: MemberId, answer: Response) {
        let Some(sender) = self.members.get(&member) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(answer) {
            self.members.remove(&member);
        }
    }

    /// Forgets connections that have ended.
    pub(super) fn prune(&mut self) {
        self.members.retain(|_, sender| !sender.is_closed());
    }
}
