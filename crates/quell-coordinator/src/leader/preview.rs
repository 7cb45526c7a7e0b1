//! Preview: what a change would do to every member's share, found by making it on a copy of the leader.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_host::task;
use quell_shares::leader::{Coordinator, Effect};
use quell_shares::ledger::{FleetView, Operation, OperationError};
use quell_shares::plan::{LimitId, MemberId, Name, Record};

use super::{ChangeError, Changes, DesiredLimits, Service};

/// A change that is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhatIf {
    /// Another weight for a member.
    Weight {
        /// The member.
        member: MemberId,
        /// Its weight.
        weight: u32,
    },
    /// Other numbers for a limit.
    Limit {
        /// Its name.
        name: String,
        /// Micro-units per second; `None` for those that it has.
        rate: Option<u64>,
        /// Micro-units; `None` for those that it has.
        burst: Option<u64>,
    },
    /// Wanted limits, for all members.
    Desired,
}

/// The fleet as it is, and as it would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Now.
    pub before: FleetView,
    /// View after every member has acknowledged the change, if all want what they want now.
    pub after: FleetView,
    /// The names of the limits before and after.
    pub names: Vec<(LimitId, Name)>,
    /// The limits that the change waits for a rollout with.
    pub waits: Vec<Name>,
}

/// Shares are planned a few times per report; this is more than one.
const LATER: Duration = Duration::from_millis(1_500);

/// The most writes that one change leads to.
const WRITES: usize = 16;

impl Service {
    /// Previews a change.
    ///
    /// # Errors
    /// As the change itself.
    pub async fn preview(&self, what_if: WhatIf) -> Result<Preview, ChangeError> {
        let copied = self.look(move |core, wanted, now| (core.clone(), wanted.clone(), now));
        let (core, wanted, now) = copied.await?;
        let leader = self.status.borrow().leader.clone();
        // A large fleet takes a while, and this copy is nobody else's.
        let work = move || preview(core, &wanted, now, what_if);
        let preview = task::run_blocking(work).await;
        let preview = preview.ok_or(super::Stopped)?;
        preview.map_err(|error| match error {
            Why::Elsewhere => ChangeError::Elsewhere { leader },
            Why::NoLimit(text) => ChangeError::Wrong(text),
            Why::Refused(error) => ChangeError::Refused(error.to_string()),
        })
    }
}

enum Why {
    Elsewhere,
    NoLimit(String),
    Refused(OperationError),
}

fn preview(
    mut core: Coordinator,
    wanted: &DesiredLimits,
    now: Monotonic,
    what_if: WhatIf,
) -> Result<Preview, Why> {
    let ledger = core.leads(now).ok_or(Why::Elsewhere)?;
    let (before, epoch) = (ledger.view(now), ledger.epoch());
    let record = ledger.record();
    // As a leader does with changed rules.
    let is_staged = wanted.changes == Changes::Staged
        || what_if == WhatIf::Desired
        || record.taken_back.is_some()
        || record.rollout.is_some();
    let operation = operation(record, wanted, what_if)?;
    let waits = match &operation {
        Operation::SetPlan(plan) if is_staged => record.plan.differing(plan).into_iter().collect(),
        _ => Vec::new(),
    };
    let mut effects = Vec::new();
    // Writes under way are taken for written.
    core.not_stored(now, &mut effects);
    core.operate(now, operation, &mut effects)
        .map_err(Why::Refused)?;
    for _ in 0..WRITES {
        let written = effects.drain(..).find_map(|effect| match effect {
            Effect::Write(record) => Some(record),
            _ => None,
        });
        let Some(record) = written else {
            break;
        };
        core.stored(now, record, &mut effects);
    }
    // The copy leads for as long as it is looked at.
    let later = now.saturating_add(LATER);
    core.kept(epoch, later);
    core.tick(later, &mut effects);
    let ledger = core.leads(later).ok_or(Why::Elsewhere)?;
    let after = ledger.view(later);
    let limits = before.limits.iter().chain(&after.limits);
    let mut names: Vec<_> = limits.map(|one| (one.limit, one.name.clone())).collect();
    names.sort();
    names.dedup();
    Ok(Preview {
        before,
        after,
        names,
        waits,
    })
}

fn operation(record: &Record, wanted: &DesiredLimits, what_if: WhatIf) -> Result<Operation, Why> {
    Ok(match what_if {
        WhatIf::Weight { member, weight } => Operation::SetWeight { member, weight },
        WhatIf::Desired => Operation::SetPlan(wanted.plan(Some(record))),
        WhatIf::Limit { name, rate, burst } => {
            let mut next = record.plan.clone();
            let limit = next.limits.iter_mut().find(|limit| *limit.name == *name);
            let Some(limit) = limit else {
                return Err(Why::NoLimit(
                    "no limit of the fleet has this name".to_owned(),
                ));
            };
            limit.quota.rate = rate.unwrap_or(limit.quota.rate);
            limit.quota.burst = burst.unwrap_or(limit.quota.burst);
            // The rules would give it other seats, too.
            wanted.find_seats(&mut next, Some(record));
            Operation::SetPlan(next)
        }
    })
}
