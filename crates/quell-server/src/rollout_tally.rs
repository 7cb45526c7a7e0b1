//! Rollout tally: how calls are answered under the rules that coordinators want to know of, and judge a rollout by.

use std::sync::Arc;
use std::time::Duration;

use quell_fleet::agent::FleetRules;
use quell_fleet::proto::RuleAnswers;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::RuleTallies;
use crate::shared::Shared;

/// Interval at which coordinators are told: a few times in a tenth of the shortest window.
const EVERY: Duration = Duration::from_millis(200);

/// Tells coordinators, for ever.
pub(crate) async fn follow(shared: Arc<Shared>, rules: Arc<FleetRules>) {
    let mut judged = rules.follow_judged();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = judged.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            _ = ticks.tick() => {}
        }
        let names = Arc::clone(&judged.borrow_and_update());
        if !names.is_empty() {
            rules.tell_answered(answers(&shared.metrics.rules, &names));
        }
    }
}

/// Counts of answers under each of these rules.
fn answers(tallies: &RuleTallies, names: &[String]) -> Vec<RuleAnswers> {
    let answers = names.iter().map(|name| {
        let counted = tallies.answers(name);
        RuleAnswers {
            rule: name.clone(),
            asked: counted.asked,
            refused: counted.refused,
            degraded: counted.degraded,
        }
    });
    answers.collect()
}
