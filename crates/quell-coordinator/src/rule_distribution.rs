//! Rule distribution: the rules that this coordinator gives to nodes, a candidate that they run in shadow beside those, the
//! names of rules by which a rollout is judged, and what they say of all these.
//!
//! Which text a node is given follows from the plan that it is to follow: a leader says which texts the plans in
//! its record name, by digest ([`RecordedRules`]), and whoever reads the rules gives the texts themselves. So while
//! changed rules are rolled out, some nodes have them and the others have those before, whoever leads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell::rule_store::{Head, Version, text_digest};
use quell_fleet::call_report::{LONGEST_WHY, MAX_ANSWERS, bounded_candidate};
use quell_fleet::proto::{Candidate, CandidateSeen, RulesSeen};
use quell_fleet::wire_rules::MAX_RULES;
use quell_shares::message::Totals;
use quell_shares::plan::{MemberId, Name, Record};
use tokio::sync::watch;

use crate::member_reports::MemberReports;
use crate::rules_trouble::RulesTrouble;

/// The most rules of which nodes say how calls were answered.
pub const MAX_JUDGED: usize = MAX_ANSWERS;

/// Most texts kept before the newest, besides those that a leader names: another coordinator may lead on
/// with what was in force before it read the newest.
const MAX_OLDER: usize = 3;

/// The texts that nodes are to have, by their digests, as a leader's record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRules {
    /// That of the plan in force.
    pub in_force: Option<Name>,
    /// That of the plan that is rolled out.
    pub rolled_out: Option<Name>,
    /// Members that follow the rollout.
    staged: BTreeSet<MemberId>,
}

impl RecordedRules {
    /// Rules of a record.
    pub(crate) fn new(record: &Record) -> Self {
        let rollout = record.rollout.as_ref();
        let staged = record.seats.iter().filter(|seat| seat.staged);
        Self {
            in_force: record.plan.rules.clone(),
            rolled_out: rollout.and_then(|rollout| rollout.plan.rules.clone()),
            staged: match rollout {
                Some(_) => staged.map(|seat| seat.member).collect(),
                None => BTreeSet::new(),
            },
        }
    }

    fn for_member(&self, member: MemberId) -> Option<&Name> {
        match self.staged.contains(&member) {
            true => self.rolled_out.as_ref(),
            false => self.in_force.as_ref(),
        }
    }

    /// The digests of the texts.
    fn texts(&self) -> impl Iterator<Item = &Name> {
        [&self.in_force, &self.rolled_out].into_iter().flatten()
    }
}

/// Versions that nodes have, or may have soon; each with another text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Version of nodes in no rollout; `None` if it is not known.
    pub in_force: Option<Arc<Version>>,
    /// The one rolled out.
    pub rolled_out: Option<Arc<Version>>,
    /// The newest, until somebody rolls it out.
    pub waiting: Option<Arc<Version>>,
}

/// A version, and the whole digest of its text: who pushes texts could find two with the same beginning of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownVersion {
    digest: Name,
    version: Arc<Version>,
}

impl KnownVersion {
    fn new(version: Arc<Version>) -> Self {
        let digest = text_digest(&version.text).into();
        Self { digest, version }
    }
}

/// Texts that are known: the newest, and some before it.
#[derive(Debug, Default)]
struct Texts {
    newest: Option<KnownVersion>,
    /// The latest first.
    older: VecDeque<KnownVersion>,
    /// `None` while no record is known that may be followed.
    recorded_rules: Option<Arc<RecordedRules>>,
    /// True if this coordinator leads.
    leads: bool,
    /// Changes of the newest to those in force, a sentence for each rule, as far as these versions are compared.
    compared: Option<(Versions, Vec<String>)>,
}

impl Texts {
    /// The newest with this text.
    fn with(&self, digest: &str) -> Option<&Arc<Version>> {
        let mut all = self.newest.iter().chain(&self.older);
        let known = all.find(|known| *known.digest == *digest);
        known.map(|known| &known.version)
    }

    /// Keeps this one as well, the newest of those with its text.
    fn add(&mut self, older: KnownVersion) {
        let Self {
            newest,
            recorded_rules,
            ..
        } = self;
        self.older.push_front(older);
        let mut kept: BTreeSet<Name> = newest.iter().map(|one| one.digest.clone()).collect();
        let most = kept.len() + MAX_OLDER;
        self.older.retain(|known| {
            let mut named = recorded_rules
                .iter()
                .flat_map(|recorded_rules| recorded_rules.texts());
            let is_kept = kept.len() < most || named.any(|digest| *digest == known.digest);
            is_kept && kept.insert(known.digest.clone())
        });
    }

    fn for_member(&self, member: MemberId) -> Option<&Arc<Version>> {
        self.with(self.recorded_rules.as_ref()?.for_member(member)?)
    }

    /// The texts that nodes are to have, and that are not known.
    fn missing(&self) -> Vec<Name> {
        let named = self
            .recorded_rules
            .iter()
            .flat_map(|recorded_rules| recorded_rules.texts());
        let missing = named.filter(|digest| self.with(digest).is_none());
        missing.cloned().collect()
    }

    fn versions(&self) -> Versions {
        let known = |digest: Option<&Name>| digest.and_then(|digest| self.with(digest)).cloned();
        let recorded_rules = self.recorded_rules.as_ref();
        let in_force = recorded_rules.and_then(|recorded_rules| recorded_rules.in_force.as_ref());
        let rolled_out =
            recorded_rules.and_then(|recorded_rules| recorded_rules.rolled_out.as_ref());
        let rolled_out = rolled_out.filter(|digest| Some(*digest) != in_force);
        let waiting = self.newest.as_ref();
        let waiting =
            waiting.filter(|newest| ![in_force, rolled_out].contains(&Some(&newest.digest)));
        Versions {
            waiting: waiting.map(|newest| Arc::clone(&newest.version)),
            in_force: known(in_force),
            rolled_out: known(rolled_out),
        }
    }
}

/// The rules for nodes that follow them. Whoever reads the rules of this coordinator publishes them here.
#[derive(Debug, Default)]
pub struct RuleDistribution {
    texts: Mutex<Texts>,
    /// Changes with them.
    changes: watch::Sender<()>,
    candidate: watch::Sender<Arc<Candidate>>,
    judged: watch::Sender<Arc<[Name]>>,
    trouble: Mutex<RulesTrouble>,
    nodes: MemberReports<NodeRules>,
    streams: AtomicU64,
}

/// A node's report on the rules that it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRules {
    /// The version that it has in force.
    pub applied: Option<Head>,
    /// Reason why it does not have the one in force that it was given last.
    pub refused: Option<String>,
    /// Result of the candidate; none if the node runs no candidates.
    pub candidate: Option<CandidateSeen>,
    /// Calls that asked, were refused and were answered degraded under each judged rule, since its process began
    /// to count; none if it does not say.
    pub answered: Option<BTreeMap<Name, Totals>>,
}

impl RuleDistribution {
    /// Has another version for nodes, which a leader gives them when its text is in force. One that no message can
    /// carry is refused, and nodes stay with the one before.
    pub fn publish(&self, version: Arc<Version>) {
        if version.text.len() > MAX_RULES {
            let number = version.number();
            let why = format!(
                "version {number} is longer than {MAX_RULES} bytes: nodes are not given it; make it shorter"
            );
            tracing::error!(why, "newer rules are not distributed to nodes");
            return self.refuse(why);
        }
        lock(&self.trouble).refused = None;
        let newest = KnownVersion::new(version);
        let mut texts = lock(&self.texts);
        if texts.newest.as_ref() == Some(&newest) {
            return;
        }
        if let Some(before) = texts.newest.replace(newest) {
            texts.add(before);
        }
        drop(texts);
        self.changes.send_replace(());
    }

    /// Has older versions for nodes: those whose texts are in force or rolled out, and not known
    /// ([`RuleDistribution::missing`]).
    pub fn add(&self, older: Vec<Arc<Version>>) {
        let older: Vec<KnownVersion> = older.into_iter().map(KnownVersion::new).collect();
        let mut texts = lock(&self.texts);
        for known in older {
            texts.add(known);
        }
        drop(texts);
        self.changes.send_replace(());
    }

    /// Says which texts nodes are to have, by the record of whoever leads, and whether this coordinator does.
    pub(crate) fn set_recorded_rules(
        &self,
        recorded_rules: Option<Arc<RecordedRules>>,
        leads: bool,
    ) {
        let mut texts = lock(&self.texts);
        texts.leads = leads;
        if texts.recorded_rules != recorded_rules {
            texts.recorded_rules = recorded_rules;
            drop(texts);
            self.changes.send_replace(());
        }
    }

    /// The digests of texts that nodes are to have, and that are not known here.
    #[must_use]
    pub fn missing(&self) -> Vec<Name> {
        lock(&self.texts).missing()
    }

    /// The digest of the text that is rolled out, if it is another one than that in force.
    pub(crate) fn rolled_out(&self) -> Option<Name> {
        let texts = lock(&self.texts);
        let recorded_rules = texts.recorded_rules.as_ref()?;
        let digest = recorded_rules.rolled_out.clone();
        digest.filter(|_| recorded_rules.rolled_out != recorded_rules.in_force)
    }

    /// Changes with what nodes are to be given.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The versions that nodes have, or may have soon.
    #[must_use]
    pub fn versions(&self) -> Versions {
        lock(&self.texts).versions()
    }

    /// The version that this member is to have; `None` if it is not known, or another coordinator leads.
    #[must_use]
    pub fn for_member(&self, member: MemberId) -> Option<Arc<Version>> {
        lock(&self.texts).for_member(member).cloned()
    }

    /// Notes what the newest of these versions changes, a sentence for each rule, for operators who are asked whether
    /// it is put into force.
    pub fn set_compared(&self, versions: Versions, sentences: Vec<String>) {
        lock(&self.texts).compared = Some((versions, sentences));
    }

    /// Changes of the newest rules to those in force; nothing if no text differs.
    #[must_use]
    pub fn changes(&self) -> Vec<String> {
        let texts = lock(&self.texts);
        let versions = texts.versions();
        match &texts.compared {
            Some((of, sentences)) if *of == versions => sentences.clone(),
            _ if versions.waiting.is_none() && versions.rolled_out.is_none() => Vec::new(),
            _ => vec![
                "the rules changed a moment ago, and are being compared: look again".to_owned(),
            ],
        }
    }

    /// Notes why newer rules than those that nodes are given are not used.
    pub fn refuse(&self, why: String) {
        lock(&self.trouble).refused = Some(why);
    }

    /// Notes why the rules cannot be read now; `None` when they can.
    pub fn set_unreadable(&self, why: Option<String>) {
        lock(&self.trouble).unreadable = why;
    }

    /// Reason why the newest rules are not in use.
    #[must_use]
    pub fn trouble(&self) -> RulesTrouble {
        let texts = lock(&self.texts);
        let missing = texts.missing().into_iter().next().filter(|_| texts.leads);
        drop(texts);
        RulesTrouble {
            missing: missing.map(|digest| {
                let digest: String = digest.chars().take(12).collect();
                format!(
                    "the text {digest} is not in the place that this coordinator reads any more: nodes keep the \
                     rules that they have, and new ones wait; take a rollout back if one runs, then `quell fleet \
                     rollout --all` gives all nodes the newest"
                )
            }),
            ..lock(&self.trouble).clone()
        }
    }

    /// Number of connected nodes following the fleet's rules, and of those that have in force the ones that they
    /// are to have.
    #[must_use]
    pub fn followers(&self) -> (usize, usize) {
        let texts = lock(&self.texts);
        let nodes = self.nodes.all();
        let has_its_own = |(member, (_, node)): &(&MemberId, &(u64, NodeRules))| {
            let due = texts.for_member(**member).map(|version| version.head());
            due.is_some() && node.applied.as_ref() == due
        };
        (nodes.len(), nodes.iter().filter(has_its_own).count())
    }

    /// The newest version that was read.
    #[must_use]
    pub fn newest(&self) -> Option<Arc<Version>> {
        let texts = lock(&self.texts);
        let newest = texts.newest.as_ref();
        newest.map(|newest| Arc::clone(&newest.version))
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

    /// Ends the candidate: nodes are given none.
    pub(crate) fn end_candidate(&self) {
        self.candidate.send_replace(Arc::default());
    }

    /// The candidate that nodes are given; the id 0 is none.
    #[must_use]
    pub fn candidate(&self) -> Arc<Candidate> {
        self.candidate.borrow().clone()
    }

    /// Reports of connected nodes on the candidate, by node.
    #[must_use]
    pub fn candidate_seen(&self) -> Vec<(MemberId, CandidateSeen)> {
        let id = self.candidate.borrow().id;
        let nodes = self.nodes.all();
        let seen = nodes.iter().filter_map(|(member, (_, node))| {
            let seen = node.candidate.as_ref().filter(|seen| seen.id == id)?;
            Some((*member, seen.clone()))
        });
        seen.collect()
    }

    /// Has nodes say how calls are answered under these rules, named as `domain/rule`, and under no others. A rollout
    /// is judged by them; so many are kept, the first in alphabetical order.
    pub fn judge_rules(&self, names: impl IntoIterator<Item = Name>) {
        let names: BTreeSet<Name> = names.into_iter().collect();
        if names.len() > MAX_JUDGED {
            tracing::warn!(
                rules = names.len(),
                judged = MAX_JUDGED,
                "this rollout changes more rules than are judged: the rules beyond that number are not \
                watched"
            );
        }
        let names: Arc<[Name]> = names.into_iter().take(MAX_JUDGED).collect();
        self.judged.send_if_modified(|judged| {
            let is_new = *judged != names;
            *judged = names;
            is_new
        });
    }

    /// The rules by which a rollout is judged, in alphabetical order.
    #[must_use]
    pub fn judged(&self) -> Arc<[Name]> {
        self.judged.borrow().clone()
    }

    /// Looks at what a node says, while it is connected and follows rules.
    pub(crate) fn look<T>(
        &self,
        member: MemberId,
        look: impl FnOnce(Option<&NodeRules>) -> T,
    ) -> T {
        let nodes = self.nodes.all();
        look(nodes.get(&member).map(|(_, node)| node))
    }

    /// A node's report, while it is connected and follows rules.
    #[must_use]
    pub fn of(&self, member: MemberId) -> Option<NodeRules> {
        self.look(member, |node| node.cloned())
    }

    /// A number for a new stream, higher than those before.
    pub(crate) fn number_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn watch_candidate(&self) -> watch::Receiver<Arc<Candidate>> {
        self.candidate.subscribe()
    }

    pub(crate) fn watch_judged(&self) -> watch::Receiver<Arc<[Name]>> {
        self.judged.subscribe()
    }

    /// A node's answers under the judged rules, and no others.
    fn answered(&self, seen: &RulesSeen) -> BTreeMap<Name, Totals> {
        let judged = self.judged();
        let answers = { seen.answered.iter().take(MAX_JUDGED) }.filter_map(|one| {
            let at = judged
                .binary_search_by(|name| (**name).cmp(&one.rule))
                .ok()?;
            let totals = Totals {
                asked: one.asked,
                refused: one.refused,
                degraded: one.degraded,
            };
            Some((judged.get(at)?.clone(), totals))
        });
        answers.collect()
    }

    /// Notes what a member says on a stream. An older stream than the one heard last says nothing new.
    pub(crate) fn note(&self, member: MemberId, stream: u64, seen: &RulesSeen) {
        let refused: String = seen.refused.chars().take(LONGEST_WHY).collect();
        let candidate = seen.candidate.clone().map(bounded_candidate);
        let node = NodeRules {
            applied: Head::parse(&seen.applied),
            refused: Some(refused).filter(|refused| !refused.is_empty()),
            candidate,
            answered: seen.counts.then(|| self.answered(seen)),
        };
        self.nodes.note(member, stream, node);
    }

    /// A stream has ended. What the member said on a newer one stays.
    pub(crate) fn forget(&self, member: MemberId, stream: u64) {
        self.nodes.forget(member, stream);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use quell::rule_store::Draft;
    use quell_fleet::proto::{CandidateKey, RuleAnswers};

    use quell_fleet::call_report::MAX_KEYS;

    use super::*;

    /// A node opens another stream before the coordinator notices that the first is gone.
    #[test]
    fn an_old_stream_takes_nothing_from_a_newer_one() {
        let (rule_distribution, member) = (RuleDistribution::default(), MemberId(1));
        let says = |refused: &str| RulesSeen {
            refused: refused.to_owned(),
            ..RulesSeen::default()
        };
        let refused = || rule_distribution.of(member).and_then(|node| node.refused);
        let (old, new) = (
            rule_distribution.number_stream(),
            rule_distribution.number_stream(),
        );
        rule_distribution.note(member, old, &says("old"));
        rule_distribution.note(member, new, &says("new"));
        rule_distribution.note(member, old, &says("late"));
        assert_eq!(refused().as_deref(), Some("new"));
        rule_distribution.forget(member, old);
        assert_eq!(refused().as_deref(), Some("new"));
        rule_distribution.forget(member, new);
        assert_eq!(rule_distribution.of(member), None);
    }

    fn version(number: u64, text: &str) -> Arc<Version> {
        let draft = Draft {
            text,
            who: "ann",
            change: "",
            note: "",
        };
        Arc::new(Version::from_draft(number, 0, &draft))
    }

    fn digest(text: &str) -> Option<Name> {
        Some(text_digest(text).into())
    }

    /// Also if the text was read before the coordinator led, and when a newer one has come.
    #[test]
    fn a_member_is_given_the_text_of_the_plan_that_it_is_to_follow() {
        let rule_distribution = RuleDistribution::default();
        let has = |member| {
            rule_distribution
                .for_member(MemberId(member))
                .map(|one| one.number())
        };
        let numbers = || {
            let versions = rule_distribution.versions();
            let all = [versions.in_force, versions.rolled_out, versions.waiting];
            all.map(|version| version.map(|one| one.number()))
        };
        let recorded_rules = |in_force, rolled_out, staged: &[u32]| {
            let recorded_rules = RecordedRules {
                in_force: digest(in_force),
                rolled_out: digest(rolled_out),
                staged: staged.iter().copied().map(MemberId).collect(),
            };
            rule_distribution.set_recorded_rules(Some(Arc::new(recorded_rules)), true);
        };
        rule_distribution.publish(version(1, "a"));
        rule_distribution.publish(version(2, "b"));
        assert_eq!(
            (has(1), numbers()),
            (None, [None, None, Some(2)]),
            "it does not lead"
        );
        recorded_rules("a", "b", &[2]);
        assert_eq!([has(1), has(2)], [Some(1), Some(2)]);
        assert_eq!(numbers(), [Some(1), Some(2), None]);
        // Two that are in use are kept, however many come.
        for number in 3..20 {
            rule_distribution.publish(version(number, &number.to_string()));
        }
        assert_eq!([has(1), has(2)], [Some(1), Some(2)]);
        assert_eq!(numbers(), [Some(1), Some(2), Some(19)]);
        // An old text under a new number.
        rule_distribution.publish(version(20, "a"));
        assert_eq!([has(1), has(2)], [Some(20), Some(2)]);
        assert_eq!(numbers(), [Some(20), Some(2), None]);
        recorded_rules("17", "2", &[2]);
        assert_eq!((has(1), has(2)), (Some(17), None));
        rule_distribution.set_recorded_rules(None, false);
        assert_eq!([has(1), has(2)], [None, None]);
    }

    /// A missing text is reported, and not replaced by one that nobody put into force.
    #[test]
    fn a_text_that_is_not_known_is_missing_until_it_is_found() {
        let rule_distribution = RuleDistribution::default();
        rule_distribution.publish(version(3, "c"));
        let recorded_rules = RecordedRules {
            in_force: digest("a"),
            rolled_out: digest("b"),
            ..RecordedRules::default()
        };
        let missing: Vec<Name> = ["a", "b"].into_iter().filter_map(digest).collect();
        rule_distribution.set_recorded_rules(Some(Arc::new(recorded_rules.clone())), false);
        assert_eq!(rule_distribution.missing(), missing);
        assert_eq!(
            rule_distribution.trouble().missing,
            None,
            "it may only be late"
        );
        rule_distribution.set_recorded_rules(Some(Arc::new(recorded_rules)), true);
        assert_eq!(rule_distribution.for_member(MemberId(1)), None);
        assert!(
            rule_distribution
                .trouble()
                .missing
                .unwrap()
                .contains("rollout --all")
        );
        let mut changes = rule_distribution.watch();
        assert!(!changes.has_changed().unwrap());
        rule_distribution.add(vec![version(2, "b"), version(1, "a")]);
        assert!(changes.has_changed().unwrap() && rule_distribution.missing().is_empty());
        changes.borrow_and_update();
        assert_eq!(
            rule_distribution.for_member(MemberId(1)),
            Some(version(1, "a"))
        );
        assert_eq!(rule_distribution.trouble().missing, None);
        rule_distribution.publish(version(4, &"#".repeat(MAX_RULES + 1)));
        assert_eq!(rule_distribution.newest(), Some(version(3, "c")));
        assert!(!changes.has_changed().unwrap());
    }

    /// The same files are read again and again, and two texts follow each other to and fro.
    #[test]
    fn a_text_is_kept_once() {
        let rule_distribution = RuleDistribution::default();
        rule_distribution.publish(version(1, "a"));
        for number in 2..50 {
            let text = ["b", "c"][usize::from(number % 2 == 0)];
            rule_distribution.publish(version(number, text));
            rule_distribution.publish(version(number, text));
        }
        let recorded_rules = RecordedRules {
            in_force: digest("a"),
            ..RecordedRules::default()
        };
        rule_distribution.set_recorded_rules(Some(Arc::new(recorded_rules)), true);
        assert_eq!(
            rule_distribution.for_member(MemberId(1)),
            Some(version(1, "a"))
        );
        assert_eq!(lock(&rule_distribution.texts).older.len(), 2);
    }

    /// Pushers of texts may find two whose digests begin alike, and the second one is given to nobody for the first.
    #[test]
    fn texts_whose_digests_begin_alike_are_two() {
        let rule_distribution = RuleDistribution::default();
        let alike = |digest: &str, version: Arc<Version>| KnownVersion {
            digest: format!("0123456789ab{digest}").into(),
            version,
        };
        let mut texts = lock(&rule_distribution.texts);
        texts.newest = Some(alike("b", version(2, "b")));
        texts.add(alike("a", version(1, "a")));
        texts.recorded_rules = Some(Arc::new(RecordedRules {
            in_force: Some("0123456789aba".into()),
            ..RecordedRules::default()
        }));
        drop(texts);
        assert_eq!(
            rule_distribution.for_member(MemberId(1)),
            Some(version(1, "a"))
        );
        assert_eq!(rule_distribution.versions().waiting, Some(version(2, "b")));
        assert_eq!(digest("a").unwrap().len(), 64);
    }

    /// Nobody is shown what an older text changes when a newer one waits.
    #[test]
    fn changes_are_those_of_the_newest_text_or_not_known_yet() {
        let rule_distribution = RuleDistribution::default();
        rule_distribution.publish(version(1, "a"));
        let recorded_rules = RecordedRules {
            in_force: digest("a"),
            ..RecordedRules::default()
        };
        rule_distribution.set_recorded_rules(Some(Arc::new(recorded_rules)), true);
        assert!(rule_distribution.changes().is_empty());
        let is_known = || !rule_distribution.changes().concat().contains("look again");
        for (number, text) in [(2, "b"), (3, "c")] {
            rule_distribution.publish(version(number, text));
            assert!(!is_known());
            rule_distribution.set_compared(rule_distribution.versions(), vec![text.to_owned()]);
            assert_eq!(rule_distribution.changes(), [text]);
        }
        rule_distribution.publish(version(4, "a"));
        assert!(rule_distribution.changes().is_empty());
    }

    /// Nodes are believed about the rules that they were asked about, and about no more of them than are kept.
    #[test]
    fn nodes_say_how_calls_were_answered_under_the_judged_rules_alone() {
        let rule_distribution = RuleDistribution::default();
        let mut given = rule_distribution.watch_judged();
        let name = |at: usize| Name::from(format!("shop/{at:03}"));
        rule_distribution.judge_rules([name(2), name(1), name(2)]);
        assert_eq!(**given.borrow_and_update(), [name(1), name(2)]);
        rule_distribution.judge_rules([name(1), name(2)]);
        assert!(!given.has_changed().unwrap(), "they are the same");
        let answers = |at: usize| RuleAnswers {
            rule: name(at).to_string(),
            asked: 10,
            refused: 4,
            degraded: 1,
        };
        let says = |counts| RulesSeen {
            counts,
            answered: [2, 3].map(answers).to_vec(),
            ..RulesSeen::default()
        };
        let answered = |member| rule_distribution.of(MemberId(member)).unwrap().answered;
        rule_distribution.note(MemberId(1), 1, &says(true));
        let totals = Totals {
            asked: 10,
            refused: 4,
            degraded: 1,
        };
        assert_eq!(answered(1), Some(BTreeMap::from([(name(2), totals)])));
        rule_distribution.note(MemberId(2), 1, &says(false));
        assert_eq!(answered(2), None, "it does not count");
        rule_distribution.judge_rules((0..1_000).map(name));
        assert_eq!(rule_distribution.judged().len(), MAX_JUDGED);
    }

    /// Counts of another candidate are not those of this one, and a node takes no more memory than it should.
    #[test]
    fn nodes_are_believed_about_the_candidate_that_they_run_and_no_further() {
        let rule_distribution = RuleDistribution::default();
        let candidate = |id| Candidate {
            id,
            ..Candidate::default()
        };
        rule_distribution.run(candidate(7)).unwrap();
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
            rule_distribution.note(MemberId(member), 1, &says(id));
        }
        rule_distribution.note(MemberId(4), 1, &RulesSeen::default());
        let seen = rule_distribution.candidate_seen();
        let members: Vec<u32> = seen.iter().map(|(member, _)| member.0).collect();
        assert_eq!((members, seen[0].1.keys.len()), (vec![1, 3], MAX_KEYS));
        let long = Candidate {
            text: "#".repeat(MAX_RULES + 1),
            ..candidate(8)
        };
        assert!(
            rule_distribution
                .run(long)
                .unwrap_err()
                .contains("make it shorter")
        );
        assert_eq!(rule_distribution.candidate().id, 7);
    }
}
