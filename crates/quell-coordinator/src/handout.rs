//! Handout: the rules that this coordinator gives to nodes, a candidate that they run in shadow beside those,
//! and what they say of both.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell::rule_store::{Head, Version};
use quell_fleet::proto::{Candidate, CandidateSeen, RulesSeen};
use quell_fleet::rules::MAX_RULES;
use quell_shares::plan::MemberId;
use tokio::sync::watch;

use crate::leader::Status;
use crate::status::RulesTrouble;

/// The most characters of a node's reason that are kept.
const LONGEST: usize = 1_000;

/// The most keys of a node that are kept, and the longest of them in bytes: nodes say no more.
const MOST_KEYS: usize = 20;
const LONGEST_KEY: usize = 1_024;

/// The rules for nodes that follow them. Whoever reads the rules of this coordinator publishes them here.
#[derive(Debug, Default)]
pub struct Handout {
    newest: watch::Sender<Option<Arc<Version>>>,
    candidate: watch::Sender<Arc<Candidate>>,
    trouble: Mutex<RulesTrouble>,
    nodes: Mutex<BTreeMap<MemberId, (u64, NodeRules)>>,
    streams: AtomicU64,
}

/// What a node says of the rules that it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRules {
    /// The version that it has in force.
    pub applied: Option<Head>,
    /// Why it does not have the one in force that it was given last.
    pub refused: Option<String>,
    /// What came of the candidate; none if the node runs no candidates.
    pub candidate: Option<CandidateSeen>,
}

impl Handout {
    /// Gives another version to nodes, from now on. One that no message can carry is refused, and nodes stay
    /// with the one before.
    pub fn publish(&self, version: Arc<Version>) {
        if version.text.len() > MAX_RULES {
            let number = version.number();
            let why = format!(
                "version {number} is longer than {MAX_RULES} bytes: nodes are not given it; make it shorter"
            );
            tracing::error!(why, "newer rules are not handed out");
            return self.refuse(why);
        }
        lock(&self.trouble).refused = None;
        self.newest.send_replace(Some(version));
    }

    /// Notes why newer rules than those that nodes are given are not used.
    pub fn refuse(&self, why: String) {
        lock(&self.trouble).refused = Some(why);
    }

    /// Notes why the rules cannot be read now; `None` when they can.
    pub fn set_unreadable(&self, why: Option<String>) {
        lock(&self.trouble).unreadable = why;
    }

    /// Why the newest rules are not in use.
    #[must_use]
    pub fn trouble(&self) -> RulesTrouble {
        lock(&self.trouble).clone()
    }

    /// How many connected nodes follow the rules of the fleet, and how many of them have the newest in force.
    #[must_use]
    pub fn followers(&self) -> (usize, usize) {
        let newest = self.newest();
        let nodes = lock(&self.nodes);
        let has_newest = |(_, node): &&(u64, NodeRules)| {
            let applied = node.applied.as_ref().zip(newest.as_deref());
            applied.is_some_and(|(applied, newest)| applied == newest.head())
        };
        (nodes.len(), nodes.values().filter(has_newest).count())
    }

    /// The version that nodes are given.
    #[must_use]
    pub fn newest(&self) -> Option<Arc<Version>> {
        self.newest.borrow().clone()
    }

    /// Gives nodes this candidate in place of the one before; one with the id 0 ends that.
    ///
    /// # Errors
    /// If no message can carry it.
    pub fn run(&self, candidate: Candidate) -> Result<(), String> {
        if candidate.text.len() > MAX_RULES {
            return Err(format!(
                "a candidate for a fleet has at most {MAX_RULES} bytes: make it shorter"
            ));
        }
        self.candidate.send_replace(Arc::new(candidate));
        Ok(())
    }

    /// Ends the candidate whenever this coordinator stops to lead: the next leader has none.
    pub(crate) async fn end_with_leader(self: Arc<Self>, mut status: watch::Receiver<Status>) {
        let mut leads = None;
        loop {
            let epoch = status.borrow_and_update().epoch;
            if leads.is_some() && leads != epoch {
                self.candidate.send_replace(Arc::default());
            }
            leads = epoch;
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    /// The candidate that nodes are given; the id 0 is none.
    #[must_use]
    pub fn candidate(&self) -> Arc<Candidate> {
        self.candidate.borrow().clone()
    }

    /// What connected nodes say that came of the candidate, by node.
    #[must_use]
    pub fn candidate_seen(&self) -> Vec<(MemberId, CandidateSeen)> {
        let id = self.candidate.borrow().id;
        let nodes = lock(&self.nodes);
        let seen = nodes.iter().filter_map(|(member, (_, node))| {
            let seen = node.candidate.as_ref().filter(|seen| seen.id == id)?;
            Some((*member, seen.clone()))
        });
        seen.collect()
    }

    /// What a node says, while it is connected and follows rules.
    #[must_use]
    pub fn of(&self, member: MemberId) -> Option<NodeRules> {
        let nodes = lock(&self.nodes);
        nodes.get(&member).map(|(_, node)| node.clone())
    }

    /// A number for a new stream, higher than those before.
    pub(crate) fn number_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<Arc<Version>>> {
        self.newest.subscribe()
    }

    pub(crate) fn watch_candidate(&self) -> watch::Receiver<Arc<Candidate>> {
        self.candidate.subscribe()
    }

    /// Notes what a member says on a stream. An older stream than the one heard last says nothing new.
    pub(crate) fn hear(&self, member: MemberId, stream: u64, seen: &RulesSeen) {
        let refused: String = seen.refused.chars().take(LONGEST).collect();
        let candidate = seen.candidate.clone().map(|mut seen| {
            seen.refused = seen.refused.chars().take(LONGEST).collect();
            seen.keys.truncate(MOST_KEYS);
            seen.keys.retain(|key| key.name.len() <= LONGEST_KEY);
            seen
        });
        let node = NodeRules {
            applied: Head::parse(&seen.applied),
            refused: Some(refused).filter(|refused| !refused.is_empty()),
            candidate,
        };
        let mut nodes = lock(&self.nodes);
        if nodes.get(&member).is_none_or(|(last, _)| *last <= stream) {
            nodes.insert(member, (stream, node));
        }
    }

    /// A stream has ended. What the member said on a newer one stays.
    pub(crate) fn forget(&self, member: MemberId, stream: u64) {
        let mut nodes = lock(&self.nodes);
        if nodes.get(&member).is_some_and(|(last, _)| *last == stream) {
            nodes.remove(&member);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use quell_fleet::proto::CandidateKey;

    use super::*;

    /// A node opens another stream before the coordinator notices that the first is gone.
    #[test]
    fn an_old_stream_takes_nothing_from_a_newer_one() {
        let (handout, member) = (Handout::default(), MemberId(1));
        let says = |refused: &str| RulesSeen {
            refused: refused.to_owned(),
            ..RulesSeen::default()
        };
        let refused = || handout.of(member).and_then(|node| node.refused);
        let (old, new) = (handout.number_stream(), handout.number_stream());
        handout.hear(member, old, &says("old"));
        handout.hear(member, new, &says("new"));
        handout.hear(member, old, &says("late"));
        assert_eq!(refused().as_deref(), Some("new"));
        handout.forget(member, old);
        assert_eq!(refused().as_deref(), Some("new"));
        handout.forget(member, new);
        assert_eq!(handout.of(member), None);
    }

    /// A coordinator that leads again does not take up what it was told before.
    #[tokio::test]
    async fn a_candidate_ends_with_its_leader() {
        let handout = Arc::new(Handout::default());
        let (show, status) = watch::channel(Status::default());
        tokio::spawn(Arc::clone(&handout).end_with_leader(status));
        let leads = async |epoch| {
            show.send_modify(|status| status.epoch = epoch);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        leads(Some(7)).await;
        let candidate = Candidate {
            id: 1,
            ..Candidate::default()
        };
        handout.run(candidate).unwrap();
        show.send_modify(|status| status.members += 1);
        leads(Some(7)).await;
        assert_eq!(handout.candidate().id, 1, "the same leader");
        leads(None).await;
        assert_eq!(handout.candidate().id, 0);
        leads(Some(9)).await;
        assert_eq!(handout.candidate().id, 0);
    }

    /// Counts of another candidate are not those of this one, and a node takes no more memory than it should.
    #[test]
    fn nodes_are_believed_about_the_candidate_that_they_run_and_no_further() {
        let handout = Handout::default();
        let candidate = |id| Candidate {
            id,
            ..Candidate::default()
        };
        handout.run(candidate(7)).unwrap();
        let says = |id| RulesSeen {
            candidate: Some(CandidateSeen {
                id,
                calls: id,
                keys: vec![CandidateKey::default(); 10_000],
                ..CandidateSeen::default()
            }),
            ..RulesSeen::default()
        };
        for (member, id) in [(1, 7), (2, 6), (3, 7)] {
            handout.hear(MemberId(member), 1, &says(id));
        }
        handout.hear(MemberId(4), 1, &RulesSeen::default());
        let seen = handout.candidate_seen();
        let members: Vec<u32> = seen.iter().map(|(member, _)| member.0).collect();
        assert_eq!((members, seen[0].1.keys.len()), (vec![1, 3], MOST_KEYS));
        let long = Candidate {
            text: "#".repeat(MAX_RULES + 1),
            ..candidate(8)
        };
        assert!(handout.run(long).unwrap_err().contains("make it shorter"));
        assert_eq!(handout.candidate().id, 7);
    }
}
