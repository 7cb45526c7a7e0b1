//! Reload: reads rules from files and stores, and brings them into force while the server answers.

use std::pin::Pin;
use std::sync::Arc;

use quell_core::rule::{DomainRules, RuleSet};
use quell_host::file_watch::Watch;
use quell_host::task;
use quell_rules::RuleChanges;

use crate::shared::Shared;

mod follow;
mod into_force;
mod secrets;

pub(crate) use follow::follow;
pub(crate) use into_force::bring_into_force;
pub(crate) use secrets::follow_secrets;
use secrets::secrets;

/// Reason why the rules are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// An operator asked for it (SIGHUP).
    Asked,
    /// A file or directory changed that may belong to the rules.
    FileChanged,
    /// The store has a new version of the rules.
    StoreChanged,
    /// The control plane sent a configuration.
    ConfigReceived,
}

impl Occasion {
    /// Its name in the log.
    const fn name(self) -> &'static str {
        match self {
            Self::Asked => "SIGHUP",
            Self::FileChanged => "a file changed",
            Self::StoreChanged => "a new version in the store",
            Self::ConfigReceived => "a configuration of the control plane",
        }
    }
}

/// Reloads the rules whenever a file changes.
pub(crate) async fn run(shared: Arc<Shared>, mut watch: Watch) {
    loop {
        watch.changed(|| shared.sources.paths()).await;
        reload(&shared, Occasion::FileChanged).await;
    }
}

/// Reads everything again for an operator: secrets and rules. A box, as that of `serve`.
#[inline(never)]
pub(crate) fn reload_all(shared: Arc<Shared>) -> Pin<Box<dyn Future<Output = bool> + Send>> {
    Box::pin(async move {
        let are_secrets_sound = secrets(&shared).await;
        reload(&shared, Occasion::Asked).await && are_secrets_sound
    })
}

/// Reads the rules again and, if they have no mistake, brings them into force. If they have one, the old
/// rules stay. If a store cannot be read, its last version is used. Returns whether the rules in force
/// are now those of all files and stores.
pub(crate) async fn reload(shared: &Arc<Shared>, occasion: Occasion) -> bool {
    // One reload at a time, so that an older file or version never wins. The lock moves into the
    // blocking task, because that goes on even if this future is dropped.
    let turn = Arc::clone(&shared.reload_turn).lock_owned().await;
    let (failed, news) = shared.sources.read().await;
    shared.metrics.reload_failures.add(news);
    if occasion == Occasion::Asked && failed > news {
        tracing::warn!("a store of rules still cannot be read: its last rules stay in force");
    }
    let shared = Arc::clone(shared);
    let work = task::run_blocking(move || {
        let _turn = turn;
        reload_now(&shared, occasion)
    });
    work.await.unwrap_or(false) && failed == 0
}

/// The part of [`reload`] that blocks: reads files and builds the rules.
fn reload_now(shared: &Shared, occasion: Occasion) -> bool {
    let loaded = match shared.sources.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            return fail(shared, problems.iter().map(ToString::to_string).collect());
        }
    };
    let change = changes(&shared.limiter.rules(), &loaded.domains);
    if let Err(error) = bring_into_force(shared, loaded) {
        return fail(shared, vec![error.to_string()]);
    }
    let is_mended = shared.health.reload.succeeded();
    shared.metrics.reloads.add(1);
    shared.envoy.note_load(true);
    let versions = shared.sources.mark_all_in_force();
    let news: String = versions
        .iter()
        .map(|version| format!("; {version}"))
        .collect();
    if !change.is_none() {
        shared.note_change();
        tracing::info!(occasion = occasion.name(), "reloaded: {change}{news}");
    } else if is_mended || !versions.is_empty() || occasion == Occasion::Asked {
        tracing::info!(
            occasion = occasion.name(),
            "reloaded: no rule changed{news}"
        );
    } else {
        // A file was touched, or a file beside the rules changed. No operator waits for that, so it is
        // only logged at debug.
        tracing::debug!("reloaded: no rule changed");
    }
    true
}

fn fail(shared: &Shared, reasons: Vec<String>) -> bool {
    shared.metrics.reload_failures.add(1);
    shared.envoy.note_load(false);
    tracing::error!("the rules have mistakes; the rules in force stay");
    for reason in &reasons {
        tracing::error!("{reason}");
    }
    shared.sources.mark_all_refused(&reasons);
    shared.health.reload.failed(reasons);
    false
}

/// The differences between the rules in force (`before`) and the new ones (`after`).
fn changes(before: &RuleSet, after: &[DomainRules]) -> RuleChanges {
    let before = before.all().map(|(domain, old)| (domain, old.rule()));
    let after = after.iter().flat_map(|domain| {
        let rules = domain.rules.iter();
        rules.map(|rule| (&*domain.domain, rule))
    });
    RuleChanges::between(before, after)
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
        let ids = LimitIds::default();
        let (set, _) = RuleSet::default().reload(parse(before), Now::default(), &ids);
        assert!(changes(&set, &parse(before)).is_none());
        assert_eq!(
            changes(&set, &parse(after)).to_string(),
            "1 added (d/c), 1 changed (d/b), 1 removed (d/a)"
        );
    }
}
