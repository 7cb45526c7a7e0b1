//! Recorded rules: finds the texts that nodes are to have by the leader's record, and tells operators what the newest one
//! changes of that in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell::rule_store::{Head, RuleStore, RuleStoreError, Version, text_digest};
use quell_core::rule::DomainRules;
use quell_host::task;
use quell_rules::{RuleChange, RuleChanges, parse_str};
use quell_shares::plan::Name;
use tokio::time::timeout;

use super::{Origin, RuleFollower, changed_rules};
use crate::rule_distribution::{MAX_JUDGED, RuleDistribution, Versions};

/// Wait before a missing text is looked for again.
const AGAIN: Duration = Duration::from_secs(10);

/// Changed rules that operators are told of.
const MOST: usize = 100;

/// In how many versions before the newest a text is looked for, if the history cannot be read.
const LAST: u64 = 20;

impl RuleFollower {
    /// Follows the record of whoever leads.
    pub(crate) async fn follow_record(self: Arc<Self>, rule_distribution: Arc<RuleDistribution>) {
        let mut changes = rule_distribution.watch();
        let (mut told, mut trouble) = (None, None);
        loop {
            changes.borrow_and_update();
            let versions = rule_distribution.versions();
            if told.as_ref() != Some(&versions) {
                reply_to(&versions, &rule_distribution).await;
                told = Some(versions);
            }
            let missing = rule_distribution.missing();
            let found = match (&self.origin, missing.is_empty()) {
                (Origin::Store(stored), false) => find(&*stored.store(), &missing).await,
                _ => Ok(Vec::new()),
            };
            let now = match found {
                Ok(found) => {
                    if !found.is_empty() {
                        rule_distribution.add(found);
                    }
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = now.as_ref().filter(|_| now != trouble) {
                tracing::warn!(reason, "cannot read the rules for nodes from the store");
            }
            trouble = now;
            let changed = timeout(AGAIN, changes.changed()).await;
            if changed.is_ok_and(|changed| changed.is_err()) {
                return;
            }
        }
    }
}

/// The versions with these texts, as far as the store has them.
async fn find(
    store: &dyn RuleStore,
    missing: &[Name],
) -> Result<Vec<Arc<Version>>, RuleStoreError> {
    // A head has the beginning of the digest.
    let may_be = |head: &Head| missing.iter().any(|text| text.starts_with(head.digest()));
    let kept = usize::try_from(store.kept()).unwrap_or(usize::MAX);
    let numbers: Vec<u64> = match store.history(kept).await {
        Ok(history) => {
            let heads = history.into_iter().map(|entry| entry.head);
            heads.filter(may_be).map(|head| head.number()).collect()
        }
        // One entry of many is damaged: the texts are probably among the last.
        Err(RuleStoreError::Damaged { .. }) => {
            let newest = store.head().await?.map_or(0, |head| head.number());
            (newest.saturating_sub(LAST)..=newest).rev().collect()
        }
        Err(error) => return Err(error),
    };
    let mut found: BTreeMap<Name, Arc<Version>> = BTreeMap::new();
    let mut trouble = Ok(());
    for number in numbers {
        let version = match store.version(number).await {
            Ok(Some(version)) if may_be(version.head()) => version,
            Ok(_) => continue,
            Err(error) => {
                trouble = Err(error);
                continue;
            }
        };
        let digest: Name = text_digest(&version.text).into();
        if missing.contains(&digest) {
            found.entry(digest).or_insert_with(|| Arc::new(version));
        }
    }
    match found.is_empty() {
        true => trouble.map(|()| Vec::new()),
        false => Ok(found.into_values().collect()),
    }
}

/// Tells operators what the newest text changes, and nodes by which rules a rollout is judged.
async fn reply_to(versions: &Versions, rule_distribution: &RuleDistribution) {
    let texts = versions.clone();
    // Ten thousand rules take a while.
    let work = move || {
        let texts = [texts.in_force, texts.rolled_out, texts.waiting];
        let [in_force, rolled_out, waiting] = texts.map(|version| domains(version.as_deref()));
        let Some(newest) = waiting.as_ref().or(rolled_out.as_ref()) else {
            return (Vec::new(), Vec::new());
        };
        let Some(before) = &in_force else {
            let unknown = "the rules in force are not known here, so it is not known what changes";
            return (vec![unknown.to_owned()], Vec::new());
        };
        let judged = rolled_out
            .as_ref()
            .map(|next| changed_rules::rules(before, next));
        (sentences(before, newest), judged.unwrap_or_default())
    };
    let (sentences, judged) = task::run_blocking(work).await.unwrap_or_default();
    rule_distribution.set_compared(versions.clone(), sentences);
    rule_distribution.judge_rules(judged);
}

/// A sentence for each rule in which the newest text differs from that in force.
fn sentences(before: &[DomainRules], after: &[DomainRules]) -> Vec<String> {
    let changes = RuleChanges::between_domains(before, after);
    let rules = changes.rules();
    if rules.is_empty() {
        return vec!["no rule: its comments or its tests are others".to_owned()];
    }
    let mut sentences: Vec<String> = rules.iter().take(MOST).map(RuleChange::sentence).collect();
    if let more @ 1.. = rules.len().saturating_sub(MOST) {
        sentences.push(format!("and {more} more"));
    }
    if let more @ 1.. = changed_rules::rules(before, after)
        .len()
        .saturating_sub(MAX_JUDGED)
    {
        let text = format!("{more} of these rules are not judged by a band: change fewer at once");
        sentences.push(text);
    }
    sentences
}

fn domains(version: Option<&Version>) -> Option<Vec<DomainRules>> {
    let loaded = parse_str("a version in force", &version?.text).ok()?;
    Some(loaded.domains)
}
