//! Candidate end: rules that run in shadow on the nodes end with the leader that was told to run them.

use std::sync::Arc;

use tokio::sync::watch;

use super::Status;
use crate::rule_distribution::RuleDistribution;

/// Ends the candidate whenever this coordinator stops to lead: the next leader has none.
pub(super) async fn end_with_leader(
    rules: Arc<RuleDistribution>,
    mut status: watch::Receiver<Status>,
) {
    let mut leads = None;
    loop {
        let epoch = status.borrow_and_update().epoch;
        if leads.is_some() && leads != epoch {
            rules.end_candidate();
        }
        leads = epoch;
        if status.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_fleet::proto::Candidate;

    /// A coordinator that leads again does not take up what it was told before.
    #[tokio::test]
    async fn a_candidate_ends_with_its_leader() {
        let rule_distribution = Arc::new(RuleDistribution::default());
        let (show, status) = watch::channel(Status::default());
        tokio::spawn(end_with_leader(Arc::clone(&rule_distribution), status));
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
        rule_distribution.run(candidate).unwrap();
        show.send_modify(|status| status.members += 1);
        leads(Some(7)).await;
        assert_eq!(rule_distribution.candidate().id, 1, "the same leader");
        leads(None).await;
        assert_eq!(rule_distribution.candidate().id, 0);
        leads(Some(9)).await;
        assert_eq!(rule_distribution.candidate().id, 0);
    }
}
