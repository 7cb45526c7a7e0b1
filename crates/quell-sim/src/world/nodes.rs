//! Nodes: what the processes of the fleet do when their timers fire.

use quell_shares::member::Stage;
use quell_shares::message::{Request, Response};

use super::{Event, World};
use crate::node::Node;
use crate::setup::MILLI;

impl World {
    /// Starts a node's process.
    pub fn start_node(&mut self, node: usize, exclusive: bool) {
        self.nonces += 1;
        let clock = self.clock();
        let nonce = self.nonces;
        self.nodes[node].start(self.now, clock, nonce, exclusive);
        let life = self.nodes[node].life;
        let first = self.rng.between(0, 500 * MILLI);
        self.at(self.now + first, Event::Agent(node, life));
        self.at(self.now + first, Event::Callers(node, life));
        self.rights_changed(node);
    }

    /// Adds a second process with the id of another one, without a guarantee
    /// that the id is its own.
    pub fn add_twin(&mut self, twin: Node) {
        self.nodes.push(twin);
        let node = self.nodes.len() - 1;
        self.start_node(node, false);
    }

    pub(super) fn agent(&mut self, node: usize, life: u32) {
        if !self.nodes[node].alive || self.nodes[node].life != life {
            return;
        }
        let report = Node::period(self.nodes[node].member.report_every());
        let again = self.now + report - report / 50 + self.rng.between(0, report / 25);
        self.at(again, Event::Agent(node, life));
        self.report(node);
    }

    fn report(&mut self, node: usize) {
        let chairs = self.chairs.len();
        // What was offered until now belongs to this report.
        self.serve(node);
        let one = &mut self.nodes[node];
        let local = one.clock.local(self.now);
        let request = match one.member.stage() {
            Stage::Joining => match one.member.join() {
                Some(join) => Request::Join(join),
                None => return,
            },
            Stage::Active => {
                let loads = one.take_loads();
                let report = one.member.report(local, &loads);
                Request::Report(report)
            }
            Stage::Leaving => match one.member.farewell() {
                Some(leave) => Request::Leave(leave),
                None => return,
            },
            Stage::Gone => {
                self.stop_node(node);
                if self.quiet {
                    self.start_node(node, true);
                }
                return;
            }
        };
        one.unanswered += 1;
        if one.unanswered > 3 {
            one.unanswered = 0;
            one.talks_to = (one.talks_to + 1) % chairs;
        }
        self.send_up(node, request);
    }

    pub(super) fn answer(&mut self, node: usize, answer: &Response) {
        let chairs = self.chairs.len();
        let one = &mut self.nodes[node];
        if !one.alive {
            return;
        }
        one.unanswered = 0;
        if let Response::Elsewhere { leader, .. } = answer {
            let hint = leader.and_then(|leader| usize::try_from(leader.0).ok());
            let hint = hint.filter(|leader| *leader < chairs && *leader != one.talks_to);
            one.talks_to = hint.unwrap_or((one.talks_to + 1) % chairs);
            return;
        }
        let local = one.clock.local(self.now);
        let adopt = one.member.receive(local, answer);
        one.note_names();
        let Some(adopt) = adopt else {
            if matches!(answer, Response::Occupied { .. } | Response::Joined(_)) {
                self.report(node);
            }
            return;
        };
        one.hasty |= adopt.prompt;
        if let Response::Grant(grant) = answer {
            self.entitled(node, grant, &adopt);
        }
        self.adopt(node, adopt);
    }

    /// Starts to put schedules into force: usually at once, sometimes slowly.
    pub fn adopt(&mut self, node: usize, adopt: quell_shares::member::Adopt) {
        let (ticket, prompt) = (adopt.ticket, adopt.prompt);
        self.nodes[node].begin(adopt);
        let life = self.nodes[node].life;
        let waited = |(slow, _): &mut (usize, u64)| *slow == node && prompt;
        let slow = self.slow_seal.take_if(waited).map(|(_, late)| late);
        if slow.is_some() || !self.quiet && self.rng.chance(2) {
            let random = self.rng.between(MILLI, 1_500 * MILLI);
            let delay = slow.unwrap_or(random);
            self.counts.slow_seals += 1;
            self.at(self.now + delay, Event::Sealed(node, life, ticket));
        } else {
            self.sealed(node, life, ticket);
        }
    }

    pub(super) fn sealed(&mut self, node: usize, life: u32, ticket: u64) {
        let one = &mut self.nodes[node];
        if !one.alive || one.life != life || !one.seal(self.now, ticket) {
            return;
        }
        let hasty = std::mem::take(&mut one.hasty);
        self.rights_changed(node);
        let leaving = self.nodes[node].member.stage() == Stage::Leaving;
        if (hasty || leaving) && self.nodes[node].alive {
            self.report(node);
        }
    }

    /// Stops a node's process.
    pub fn stop_node(&mut self, node: usize) {
        self.nodes[node].stop();
        self.rights_changed(node);
    }

    pub(super) fn callers(&mut self, node: usize, life: u32) {
        if !self.nodes[node].alive || self.nodes[node].life != life {
            return;
        }
        let again = self.now + self.rng.between(100 * MILLI, 600 * MILLI);
        self.at(again, Event::Callers(node, life));
        self.serve(node);
    }

    /// Serves the callers of a node that came since the last time.
    pub fn serve(&mut self, node: usize) {
        let mut admitted = std::mem::take(&mut self.admitted);
        self.nodes[node].serve(self.now, &mut admitted);
        for (limit, units, above) in admitted.drain(..) {
            let at = self.judged.iter().position(|judged| *judged == limit);
            let judge = at.and_then(|at| self.judges.get_mut(at));
            let wrong = judge.and_then(|judge| judge.admit(self.now, units));
            self.blame(wrong);
            self.blame(above);
        }
        self.admitted = admitted;
    }
}
