//! Reload: rules from the files into force, while the server answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use quell_core::rule::{DomainRules, RuleSet};

use crate::rules;
use crate::shared::Shared;

mod watch;

pub(crate) use watch::{Watch, run};

/// Names that one line of the log shows at most.
const MAX_NAMES: usize = 20;

/// Why rules are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Somebody asked for it.
    Asked,
    /// A file or directory changed that may be of the rules.
    FileChanged,
}

/// Reads the rules again and, if they are sound, brings them into force. A mistake leaves those in
/// force that are. Returns whether what is in force is what the files say.
pub(crate) async fn reload(shared: &Arc<Shared>, occasion: Occasion) -> bool {
    let shared = Arc::clone(shared);
    let work = tokio::task::spawn_blocking(move || reload_now(&shared, occasion));
    work.await.unwrap_or(false)
}

/// [`reload`] on this thread. Reads files.
fn reload_now(shared: &Shared, occasion: Occasion) -> bool {
    // One at a time, so that an older file never wins.
    let _turn = shared.reload_turn.lock();
    let loaded = match rules::load(&shared.config) {
        Ok(loaded) => loaded,
        Err(problems) => {
            return fail(shared, problems.iter().map(ToString::to_string).collect());
        }
    };
    let change = Change::between(&shared.limiter.rules(), &loaded.domains);
    if let Err(error) = rules::bring_into_force(shared, loaded) {
        return fail(shared, vec![error.to_string()]);
    }
    let is_mended = shared.health.reloaded();
    shared.metrics.reloads.add(1);
    if !change.is_none() {
        shared.note_change();
        tracing::info!("reloaded: {change}");
    } else if is_mended || occasion == Occasion::Asked {
        tracing::info!("reloaded: the rules are as they were");
    } else {
        // A file was touched, or one beside them changed: nothing that an operator waits to read.
        tracing::debug!("reloaded: the rules are as they were");
    }
    true
}

fn fail(shared: &Shared, reasons: Vec<String>) -> bool {
    shared.metrics.reload_failures.add(1);
    tracing::error!("the rules have mistakes; those in force stay so");
    for reason in &reasons {
        tracing::error!("{reason}");
    }
    shared.health.reload_failed(reasons);
    false
}

/// What a reload changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    added: BTreeSet<String>,
    changed: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl Change {
    fn between(before: &RuleSet, after: &[DomainRules]) -> Self {
        let mut change = Self::default();
        let mut kept = BTreeSet::new();
        for domain in after {
            let old = before.domain(&domain.domain).iter();
            let old: BTreeMap<_, _> = old.map(|old| (&old.rule().name, old.rule())).collect();
            for rule in &domain.rules {
                let name = format!("{}/{}", domain.domain, rule.name);
                match old.get(&rule.name) {
                    None => change.added.insert(name.clone()),
                    Some(other) if *other != rule => change.changed.insert(name.clone()),
                    Some(_) => false,
                };
                kept.insert(name);
            }
        }
        let names = before.all();
        let names = names.map(|(domain, old)| format!("{domain}/{}", old.rule().name));
        change.removed = names.filter(|name| !kept.contains(name)).collect();
        change
    }

    fn is_none(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (what, names) in [
            ("added", &self.added),
            ("changed", &self.changed),
            ("removed", &self.removed),
        ] {
            if names.is_empty() {
                continue;
            }
            let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
            write!(f, "{separator}{} {what} ({}", names.len(), shown.join(", "))?;
            if names.len() > MAX_NAMES {
                f.write_str(", ..")?;
            }
            f.write_str(")")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quell_core::rule::LimitIds;
    use quell_core::time::Now;

    use super::*;

    #[test]
    fn a_change_is_told_by_names() {
        let parse = |text: &str| quell_rules::parse_str("test", text).unwrap().domains;
        let before = "domain: d\nrules: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]";
        let after = "domain: d\nrules: [{name: b, rate: 2/s}, {name: c, rate: 1/s}]";
        let mut ids = LimitIds::default();
        let (set, _) = RuleSet::default().succeed(parse(before), Now::default(), &mut ids);
        assert!(Change::between(&set, &parse(before)).is_none());
        let change = Change::between(&set, &parse(after));
        assert_eq!(
            change.to_string(),
            "1 added (d/c), 1 changed (d/b), 1 removed (d/a)"
        );
    }
}
