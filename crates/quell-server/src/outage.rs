//! Outage: what callers get while a shared store, or the coordinators of a fleet, do not answer, in sentences.
//! They are made here, for the log, health, the console and metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::rule::{Rule, RuleSet};
use quell_fleet::agent::NodeState;
use quell_store::fallback::StoreTrouble;

/// Answers of the rules that a store decides while it does not answer: the number of rules for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutageEffects {
    /// By the number of servers that share a limit.
    shared: BTreeMap<NonZeroU32, usize>,
    refuse: usize,
    allow: usize,
    /// Number of rules that declare no answer.
    fail: usize,
}

impl OutageEffects {
    /// Effects of the rules in force.
    pub(crate) fn new(rules: &RuleSet) -> Self {
        let mut effects = Self::default();
        for (_, active) in rules.all() {
            let rule = active.rule();
            if matches!(rule.policy.rung, Rung::Local | Rung::Shares(_)) || !limits(rule) {
                continue;
            }
            match rule.policy.on_failure {
                Some(OnFailure::Share { nodes }) => *effects.shared.entry(nodes).or_default() += 1,
                Some(OnFailure::Deny) => effects.refuse += 1,
                Some(OnFailure::Allow) => effects.allow += 1,
                None => effects.fail += 1,
            }
        }
        effects
    }
}

/// Returns true if a rule limits any call.
fn limits(rule: &Rule) -> bool {
    rule.effects().any(|effect| effect.limit().is_some())
}

/// As `6 rules let half their limit pass on each server, 2 refuse everything`.
impl fmt::Display for OutageEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared.iter().map(|(nodes, count)| {
            let part = match nodes.get() {
                1 => "all of".to_owned(),
                2 => "half".to_owned(),
                3 => "a third of".to_owned(),
                4 => "a quarter of".to_owned(),
                nodes => format!("1/{nodes} of"),
            };
            let [one, many] = ["lets", "let"];
            let their = if *count == 1 { "its" } else { "their" };
            let verb = if *count == 1 { one } else { many };
            (
                *count,
                format!("{verb} {part} {their} limit pass on each server"),
            )
        });
        let verb = |count: usize, one: &str, many: &str, what: &str| {
            let verb = if count == 1 { one } else { many };
            (count, format!("{verb} {what}"))
        };
        let others = [
            verb(self.refuse, "refuses", "refuse", "everything"),
            verb(self.allow, "lets", "let", "everything pass"),
            verb(self.fail, "answers", "answer", "with an error"),
        ];
        let all = shared.chain(others.into_iter().filter(|(count, _)| *count > 0));
        let mut is_first = true;
        for (count, does) in all {
            match std::mem::replace(&mut is_first, false) {
                true if count == 1 => write!(f, "1 rule {does}")?,
                true => write!(f, "{count} rules {does}")?,
                false => write!(f, ", {count} {does}")?,
            }
        }
        match is_first {
            true => f.write_str("no rule needs it"),
            false => Ok(()),
        }
    }
}

/// Trouble of a shared store, and the answers that callers get meanwhile. `gone` has those of its servers
/// that do not answer.
pub(crate) fn of_store(
    url: &str,
    gone: &[String],
    trouble: &StoreTrouble,
    effects: &OutageEffects,
) -> String {
    let (who, what) = match gone {
        [] => (url.to_owned(), "does not decide every call"),
        [one] => (one.clone(), "does not answer"),
        many => (many.join(", "), "do not answer"),
    };
    let since = instant(Timestamp::from_nanosecond(trouble.since.as_nanos().into()));
    format!(
        "Redis {who} {what} since {since} ({}): {effects}",
        trouble.reason
    )
}

/// Source of a node's quota while no coordinator grants it its share, and so the answers that callers get.
/// `None` while one does. `count` rules have a limit that the fleet shares; one answered so long ago.
pub(crate) fn of_node(
    state: NodeState,
    count: usize,
    answered: Option<Duration>,
) -> Option<String> {
    let part = match state {
        NodeState::Granted => return None,
        NodeState::Gap | NodeState::Static => "at most this node's static share",
        NodeState::Joining | NodeState::Floor => "at most this node's floor",
        NodeState::Leaving | NodeState::Drained => "nothing on this node",
    };
    let since = match answered {
        None => "yet".to_owned(),
        Some(ago) => format!("since {}", instant(Timestamp::now().checked_sub(ago))),
    };
    let rules = match count {
        1 => "1 rule of the fleet lets".to_owned(),
        many => format!("{many} rules of the fleet let"),
    };
    Some(format!(
        "no coordinator has granted this node its share {since}: {rules} {part} pass"
    ))
}

/// Number of rules whose limit the nodes of a fleet share.
pub(crate) fn fleet_rules(rules: &RuleSet) -> usize {
    let rules = rules.all().map(|(_, active)| active.rule());
    { rules.filter(|rule| matches!(rule.policy.rung, Rung::Shares(_)) && limits(rule)) }.count()
}

/// The time of day, and the day if that is another one than today.
fn instant(at: Result<Timestamp, jiff::Error>) -> String {
    let Ok(at) = at else {
        return "a time that is not known".to_owned();
    };
    let is_today = Timestamp::now().duration_since(at).as_hours().abs() < 24;
    let format = if is_today {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    format!("{} UTC", at.strftime(format))
}

#[cfg(test)]
mod tests {
    use quell::Limiter;
    use quell::store::memory::MemoryStore;
    use quell_core::time::Wall;
    use quell_rules::parse_str;

    use super::*;

    fn effects(rules: &str) -> OutageEffects {
        let text = format!("domain: d\nrules:\n{rules}");
        let limiter = Limiter::new(MemoryStore::new());
        let domains = parse_str("rules", &text).unwrap().domains;
        limiter.set_rules(domains).unwrap();
        OutageEffects::new(&limiter.rules())
    }

    #[test]
    fn a_sentence_says_what_callers_get() {
        let rule = |name: &str, more: &str| format!("  - {{ name: {name}, rate: 9/s{more} }}\n");
        let half = |name: &str| rule(name, ", on_failure: share, nodes: 2");
        let text = [
            half("a"),
            half("b"),
            rule("c", ", on_failure: share, nodes: 3"),
            rule("e", ", on_failure: deny"),
            rule("f", ", on_failure: allow"),
            rule("g", ", on_failure: allow"),
            rule("h", ", rung: local"),
            rule("i", ""),
        ];
        let effects = effects(&text.concat());
        let said = "2 rules let half their limit pass on each server, 1 lets a third of its limit pass on each \
                    server, 1 refuses everything, 2 let everything pass, 1 answers with an error";
        assert_eq!(effects.to_string(), said);
        assert_eq!(OutageEffects::default().to_string(), "no rule needs it");

        let now = u64::try_from(Timestamp::now().as_nanosecond()).unwrap();
        let mut trouble = StoreTrouble {
            since: Wall::from_nanos(now),
            reason: "connection refused".to_owned(),
        };
        let clock = Timestamp::from_nanosecond(now.into())
            .unwrap()
            .strftime("%H:%M:%S");
        let sentence = of_store("redis://a:1", &["a:1".to_owned()], &trouble, &effects);
        let begins = format!(
            "Redis a:1 does not answer since {clock} UTC (connection refused): 2 rules let"
        );
        assert!(sentence.starts_with(&begins), "{sentence}");
        trouble.since = Wall::from_nanos(784_111_777_000_000_000);
        let sentence = of_store("redis://a:1", &[], &trouble, &effects);
        let begins = "Redis redis://a:1 does not decide every call since 1994-11-06 08:49:37 UTC (";
        assert!(sentence.starts_with(begins), "{sentence}");
    }

    #[test]
    fn a_node_says_what_it_lets_pass() {
        assert_eq!(of_node(NodeState::Granted, 1, None), None);
        let said = of_node(NodeState::Joining, 1, None).unwrap();
        let all = "no coordinator has granted this node its share yet: 1 rule of the fleet lets at most this \
                   node's floor pass";
        assert_eq!(said, all);
        let said = of_node(NodeState::Static, 3, Some(Duration::from_secs(9))).unwrap();
        assert!(
            said.ends_with("UTC: 3 rules of the fleet let at most this node's static share pass")
        );
    }
}
