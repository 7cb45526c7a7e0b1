//! Follow: notices that somebody pushed other rules to a store.
//!
//! It asks for the head, over and over, and nothing else: a message that the store sends is lost when
//! the connection breaks, and then somebody would have to ask as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Occasion;
use crate::shared::Shared;
use crate::stored_rules::{Look, StoredRules};

/// How often the head is asked for: people wait a second, and a thousand servers are a thousand
/// commands a second, a hundredth of what a store answers.
const PERIOD: Duration = Duration::from_secs(1);

/// Reloads whenever there is another version.
pub(crate) async fn follow(shared: Arc<Shared>, stored: Arc<StoredRules>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match stored.look().await {
            Look::AsBefore => {}
            Look::Failed => shared.metrics.reload_failures.add(1),
            Look::Changed => {
                super::reload(&shared, Occasion::StoreChanged).await;
            }
        }
    }
}
