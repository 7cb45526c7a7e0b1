//! Network: what happens to messages on their way.

use std::iter;

use quell_shares::leader::Effect;
use quell_shares::message::{Request, Response};

use super::{Event, World};
use crate::check::Violation;
use crate::node::Node;
use crate::setup::{MILLI, SECOND};
use crate::store::Ask;

impl World {
    /// A random delay of the network.
    pub fn delay(&mut self) -> u64 {
        let part = self.rng.between(0, 100);
        if self.quiet || !self.setup.slow || part < 85 {
            return self.rng.between(100_000, 10 * MILLI);
        }
        if part < 97 {
            return self.rng.between(10 * MILLI, 2 * SECOND);
        }
        self.rng.between(2 * SECOND, 30 * SECOND)
    }

    /// Number of copies of a message that arrive: usually one.
    fn copies(&mut self) -> u32 {
        if self.quiet {
            return 1;
        }
        let part = self.rng.between(0, 100);
        if part < self.setup.loss {
            self.counts.lost += 1;
            return 0;
        }
        if part < 2 * self.setup.loss {
            self.counts.doubled += 1;
            return 2;
        }
        1
    }

    pub(super) fn send_up(&mut self, node: usize, request: Request) {
        let chair = self.nodes[node].talks_to;
        if self.cuts[node * self.chairs.len() + chair].0 > self.now {
            self.counts.cut += 1;
            return;
        }
        let again = match &request {
            Request::Join(_) => self.double_joins,
            Request::Leave(_) => self.double_leaves,
            Request::Report(_) => self.double_reports,
        };
        if again > 0 {
            self.counts.doubled += 1;
            // The coordinator that leads at that time gets it.
            for other in 0..self.chairs.len() {
                self.at(self.now + again, Event::Request(other, request.clone()));
            }
        }
        let says = matches!(&request, Request::Report(report) if report.held.is_some());
        let slow = self.slow_held.take_if(|(slow, _)| *slow == node && says);
        for _ in 0..self.copies() {
            let delay = self.delay() + slow.map_or(0, |(_, late)| late);
            self.count_delay(delay);
            self.at(self.now + delay, Event::Request(chair, request.clone()));
        }
    }

    fn count_delay(&mut self, delay: u64) {
        if delay > 10 * MILLI {
            self.counts.delayed += 1;
        }
    }

    /// Sends a coordinator's messages, after its pause if it was paused between deciding
    /// and sending.
    pub(crate) fn perform(&mut self, chair: usize, held: u64) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Response { to, answer } => {
                    // A node's index is its id; twins follow after all others.
                    let own = usize::try_from(to.0).unwrap_or(usize::MAX);
                    let twins = self.setup.weights.len()..self.nodes.len();
                    for node in iter::once(own).chain(twins) {
                        let is_it = |node: &Node| node.id == to && node.alive;
                        if self.nodes.get(node).is_some_and(is_it) {
                            self.send_down(chair, node, &answer, held);
                        }
                    }
                }
                Effect::Write(record) => {
                    let local = self.chairs[chair].clock.local(self.now);
                    let epoch = self.chairs[chair].core.leads(local).map(|l| l.epoch());
                    if let Some(epoch) = epoch {
                        let over = self.chairs[chair].over.take();
                        let ask = Ask::Write {
                            epoch,
                            over: over.unwrap_or(record.version - 1),
                            record,
                        };
                        self.ask_later(chair, ask, held);
                    }
                }
                Effect::Verify { epoch } => {
                    let asked = self.chairs[chair].clock.local(self.now).as_nanos();
                    self.ask_later(chair, Ask::Verify { epoch, asked }, held);
                }
                Effect::Resign { epoch } => {
                    let snapshot = None;
                    self.ask_later(chair, Ask::Resign { epoch, snapshot }, held);
                }
                Effect::StoreRollback(proof) => {
                    self.counts.alarms += 1;
                    self.blame((!self.restored).then(|| Violation {
                        at: self.now,
                        promise: "alarm",
                        text: format!("nobody restored the store: {proof}"),
                    }));
                }
                Effect::SteppedDown { .. } => self.counts.steps_down += 1,
                Effect::Suspect(_) | Effect::Heard(_) => {}
            }
        }
        self.effects = effects;
    }

    pub(super) fn send_down(&mut self, chair: usize, node: usize, answer: &Response, held: u64) {
        if self.cuts[node * self.chairs.len() + chair].1 > self.now {
            self.counts.cut += 1;
            return;
        }
        let mut extra = 0;
        if matches!(answer, Response::Push(_)) {
            self.counts.pushes += 1;
            extra = self.slow_pushes;
        }
        let is_grant = matches!(answer, Response::Grant(_));
        let slow = |(slow, _): &mut (usize, u64)| *slow == node && is_grant;
        if let Some((_, late)) = self.slow_next.take_if(slow) {
            extra = late;
        }
        for _ in 0..self.copies() {
            let delay = self.delay() + extra;
            self.count_delay(delay);
            self.at(
                self.now.max(held) + delay,
                Event::Response(node, answer.clone()),
            );
        }
    }

    pub(super) fn ask_later(&mut self, chair: usize, ask: Ask, held: u64) {
        if self.store_down > self.now || self.chairs[chair].cut_off > self.now {
            self.counts.cut += 1;
            return;
        }
        let life = self.chairs[chair].life;
        let delay = self.rng.between(MILLI / 2, 8 * MILLI);
        let late = !self.quiet && self.rng.chance(1) && self.setup.slow;
        let delay = if late { delay * 200 } else { delay };
        self.at(self.now.max(held) + delay, Event::Ask(chair, life, ask));
    }
}
