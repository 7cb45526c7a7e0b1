//! Standing: finds the texts that nodes are to have by the leader's record, and tells operators what the newest one
//! changes of that in force.

use std::sync::Arc;
use std::time::Duration;

use quell::rule_store::{Head, RuleStoreError, Version};
use quell_coordinator::handout::{Handout, Versions};
use quell_core::rule::DomainRules;
use quell_rules::{RuleChange, RuleChanges, parse_str};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::judged;
use super::limits::{Limits, Origin};

/// How often a text is looked for that was not found.
const AGAIN: Duration = Duration::from_secs(10);

/// Changed rules that operators are told of.
const MOST: usize = 100;

impl Limits {
    /// Follows the leader's record.
    pub(super) async fn follow_standing(self: Arc<Self>, handout: Arc<Handout>) {
        let mut changes = handout.watch();
        let mut told = None;
        loop {
            changes.borrow_and_update();
            if let Some(digest) = handout.missing()
                && let Err(error) = self.find(&digest, &handout).await
            {
                tracing::warn!(%digest, %error, "rules that nodes are to have cannot be read");
            }
            let versions = handout.versions();
            if told.as_ref() != Some(&versions) {
                tell(versions.clone(), &handout).await;
                told = Some(versions);
            }
            if timeout(AGAIN, changes.changed())
                .await
                .is_ok_and(|changed| changed.is_err())
            {
                return;
            }
        }
    }

    /// Gives the handout the version with this text, if the store still has one.
    async fn find(&self, digest: &str, handout: &Handout) -> Result<(), RuleStoreError> {
        let Origin::Store(store) = &self.origin else {
            return Ok(());
        };
        let kept = usize::try_from(store.kept()).unwrap_or(usize::MAX);
        let history = store.history(kept).await?;
        let has_it = |head: &Head| head.digest() == digest;
        let Some(entry) = history.iter().find(|entry| has_it(&entry.head)) else {
            return Ok(());
        };
        let version = store.version(entry.head.number()).await?;
        if let Some(version) = version.filter(|version| has_it(version.head())) {
            handout.add(Arc::new(version));
        }
        Ok(())
    }
}

/// Tells operators what the newest text changes, and nodes by which rules a rollout is judged.
async fn tell(versions: Versions, handout: &Handout) {
    // Ten thousand rules take a while.
    let work = move || {
        let texts = [versions.in_force, versions.rolled_out, versions.waiting];
        let [in_force, rolled_out, waiting] = texts.map(|version| domains(version.as_deref()));
        let (Some(before), Some(newest)) = (&in_force, waiting.as_ref().or(rolled_out.as_ref()))
        else {
            return (Vec::new(), Vec::new());
        };
        // Before a rollout begins, so that what nodes answered before it is known.
        let next = rolled_out.as_ref().unwrap_or(newest);
        (sentences(before, newest), judged::rules(before, next))
    };
    let (sentences, judged) = spawn_blocking(work).await.unwrap_or_default();
    handout.set_waiting(sentences);
    handout.judge_rules(judged);
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
    sentences
}

fn domains(version: Option<&Version>) -> Option<Vec<DomainRules>> {
    let loaded = parse_str("a version in force", &version?.text).ok()?;
    Some(loaded.domains)
}
