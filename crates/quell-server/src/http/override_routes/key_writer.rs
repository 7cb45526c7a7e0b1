//! Key writer: somebody who sets or deletes the overrides of one key, by a route or on a page.

use quell::override_store::{Change, StoredOverride};
use quell_protocol::http::{DeletedOverridesBody, OverrideRecordBody, Problem, ProblemKind};
use serde_json::{Map, Value};

use super::{
    Audit, Condition, KeyAddress, changed_meanwhile, get_record, is_unconfirmed, may_write,
    pointer, problem, restart, revision_of, wanted,
};
use crate::access::Caller;
use crate::http::admin::Operator;
use crate::http::reply::{Refusal, invalid_field};
use crate::overrides::{BoostThen, ChangeMode, EndNow, OverrideRequest, check_keys, record_body};
use crate::shared::Shared;

/// Somebody who may change the overrides of a key.
pub(in crate::http) struct KeyWriter<'a> {
    shared: &'a Shared,
    caller: &'a Caller,
    key: KeyAddress,
    audit: Audit<'a>,
}

impl<'a> KeyWriter<'a> {
    /// Somebody who changes a key.
    ///
    /// # Errors
    /// [`Refusal`] if this caller may not.
    pub(in crate::http) fn new(
        shared: &'a Shared,
        Operator { caller, from }: Operator<'a>,
        key: KeyAddress,
    ) -> Result<Self, Refusal> {
        may_write(caller, &key.domain)?;
        Ok(Self {
            shared,
            caller,
            key,
            audit: Audit::new(shared, caller, from),
        })
    }

    /// Writes the override that the members of an object say, and whether it is new.
    ///
    /// # Errors
    /// [`Refusal`] if it is wrong, the condition does not hold, or the store does not answer.
    pub(in crate::http) async fn set(
        &self,
        condition: Condition,
        members: Map<String, Value>,
    ) -> Result<(OverrideRecordBody, bool), Refusal> {
        let (shared, key) = (self.shared, &self.key);
        let now = shared.limiter.now();
        let asked = OverrideRequest::read(members, now.wall)
            .map_err(|wrong| invalid_field(&pointer(wrong.member), wrong.reason))?;
        let id = key.id(shared, asked.until.is_some())?;
        let mode = asked.mode;
        // The domain and the rule are named before anything is said of a condition.
        check_keys(shared, &id).map_err(problem)?;
        let before = get_record(shared, &id).await?;
        let other = match condition.needs_other(before.as_ref()) {
            true => get_record(shared, &id.counterpart()).await?,
            false => None,
        };
        let revisions = [before.as_ref(), other.as_ref()].map(revision_of);
        let expected = condition.of_put(revisions).map_err(changed_meanwhile)?;
        let wanted = wanted(id, asked, self.caller, expected);
        let change = wanted.check(shared, now).map_err(problem)?;
        let end_now = match condition {
            Condition::Nothing => Some(EndNow::ByCondition),
            Condition::Shown(_) => Some(EndNow::ByDeletion),
            Condition::Absent | Condition::Present | Condition::Revision(_) => None,
        };
        if let (Change::Put { record, .. }, Some(end_now)) = (&change, end_now) {
            let boost = BoostThen::AsStored;
            let checked = shared.check_later(record, boost, end_now, now.wall);
            checked.await.map_err(problem)?;
        }
        let changes = std::slice::from_ref(&change);
        let changed = shared.change_overrides(changes, key.wait).await;
        let Change::Put { mut record, .. } = change else {
            let detail = "no override was made";
            return Err(Box::new(Problem::new(ProblemKind::Internal, detail)).into());
        };
        let note = |record: &StoredOverride, revision| {
            let before = before.as_ref();
            self.audit.note(&record.id, before, Some(record), revision);
        };
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                if is_unconfirmed(&error) {
                    note(&record, None);
                }
                return Err(problem(error).into());
            }
        };
        record.revision = changed
            .revisions
            .first()
            .copied()
            .flatten()
            .unwrap_or_default();
        let revision = record.revision;
        note(&record, Some(revision));
        if mode == ChangeMode::Restart {
            restart(shared, &record.id, revision).await?;
        }
        let in_force = changed.is_here && shared.has_in_force(&record, shared.limiter.now().wall);
        let body = OverrideRecordBody {
            servers: changed.servers,
            ..record_body(&record, in_force)
        };
        Ok((body, before.is_none()))
    }

    /// Deletes the overrides of the key, or the one that its address names.
    ///
    /// # Errors
    /// [`Refusal`] if the condition does not hold, or the store does not answer.
    pub(in crate::http) async fn delete(
        &self,
        condition: Condition,
    ) -> Result<DeletedOverridesBody, Refusal> {
        let (shared, key) = (self.shared, &self.key);
        let mut before = Vec::new();
        for has_end in [false, true] {
            if key.which.is_none_or(|which| which.has_end() == has_end) {
                let own = key.id(shared, has_end)?;
                for id in key.ids(shared, has_end)? {
                    let record = get_record(shared, &id).await?;
                    if record.is_some() || id == own {
                        before.push((id, record));
                    }
                }
            }
        }
        if before.iter().all(|(_, record)| record.is_none()) {
            check_keys(shared, &key.id(shared, false)?).map_err(problem)?;
        }
        let revisions: Vec<u64> = { before.iter() }
            .map(|(_, record)| revision_of(record.as_ref()))
            .collect();
        let expects = condition.of_delete(&revisions).map_err(changed_meanwhile)?;
        let changes = before.iter().zip(&revisions);
        let changes: Vec<Change> = changes
            .map(|((id, _), revision)| Change::Delete {
                id: id.clone(),
                expected: expects.then_some(*revision),
            })
            .collect();
        let changed = shared.change_overrides(&changes, key.wait).await;
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                if is_unconfirmed(&error) {
                    for (id, record) in &before {
                        self.audit.note(id, record.as_ref(), None, None);
                    }
                }
                return Err(problem(error).into());
            }
        };
        let revisions = &changed.revisions;
        for ((id, record), revision) in before.iter().zip(revisions) {
            if revision.is_some() {
                self.audit.note(id, record.as_ref(), None, *revision);
            }
        }
        Ok(DeletedOverridesBody {
            deleted: revisions.iter().flatten().count(),
            revision: changed.position.revision(),
            servers: changed.servers,
        })
    }
}
