//! Unshared: warns of limits of this node's rules that its fleet does not share.

use std::sync::Arc;
use std::time::Duration;

use super::first;
use crate::shared::Shared;

/// Interval of the check that the fleet shares what the rules say.
const LOOK: Duration = Duration::from_secs(5);

/// Warns of limits that the fleet does not share, each time that they are others.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let mut told = Vec::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(node) = &shared.node else { return };
        let missing = node.not_shared();
        if missing != told && !missing.is_empty() {
            tracing::warn!(
                limits = first(missing.iter().map(|name| &**name)),
                count = missing.len(),
                "the coordinators do not share the limits of some of this node's rules: calls on these \
                rules are refused; give the coordinators the same rules"
            );
        }
        told = missing;
    }
}
