//! Stored overrides on the wire: calls of an [`OverrideStore`] as messages, and their answers.

use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{
    AppliedChange, ApplyOutcome, Change, Changes, Cursor, Follower, MAX_OVERRIDE_BATCH,
    OverrideFilter, OverrideId, OverrideStore, OverrideStoreError, Page, Position, RuleFilter,
    StoredOverride,
};

use crate::proto;
use crate::proto::override_answer::Kind as Answer;
use crate::proto::override_call::Kind as Call;
use crate::wire::MAX_MESSAGE;

/// The longest time for which a coordinator lets a node wait for changes.
pub const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// The longest text of one position.
const MAX_POSITION: usize = 128;

/// The longest name of a follower, in bytes.
const MAX_FOLLOWER: usize = 128;

/// Every rule, in a list of those for every rule.
const STAR: &str = "*";

/// Reason why a message is not a call, or not the answer to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireOverridesError {
    /// It is empty, or of another kind.
    #[error("the message is of a later version: are all processes of the fleet up to date?")]
    Kind,
    /// A text in it cannot be read.
    #[error("{0}")]
    Text(String),
}

fn wrong(reason: impl ToString) -> WireOverridesError {
    WireOverridesError::Text(reason.to_string())
}

/// The call for the override with this id.
#[must_use]
pub fn get(id: &OverrideId) -> Call {
    Call::Get(deleted(id))
}

/// The call for a page: of one domain, or of all.
#[must_use]
pub fn list(filter: Option<&OverrideFilter>, after: Option<&Cursor>, most: usize) -> Call {
    let rule = filter.and_then(|filter| match &filter.rule {
        RuleFilter::Any => None,
        RuleFilter::Star => Some(STAR.to_owned()),
        RuleFilter::Named(rule) => Some(rule.to_string()),
    });
    Call::List(proto::OverrideList {
        domain: filter.map(|filter| filter.domain.to_string()),
        rule,
        prefix: filter.map_or_else(String::new, |filter| filter.prefix.to_string()),
        plan: filter.and_then(|filter| filter.plan.as_ref().map(ToString::to_string)),
        after: after.map_or_else(String::new, |after| after.as_str().to_owned()),
        most: most as u64,
    })
}

/// The call that makes these changes.
///
/// # Errors
/// [`OverrideStoreError::Unfit`] if they are more than a message can carry.
pub fn apply(changes: &[Change]) -> Result<Call, OverrideStoreError> {
    let mut lines = String::new();
    for change in changes {
        let json = match change {
            Change::Put { record, .. } => record.to_json(),
            Change::Delete { id, .. } => deleted(id),
        };
        match change.expected() {
            Some(expected) => lines.push_str(&expected.to_string()),
            None => lines.push('-'),
        }
        lines.push(' ');
        lines.push_str(&json);
        lines.push('\n');
    }
    if lines.len() > MAX_MESSAGE - 1_024 {
        let bytes = lines.len();
        let reason = format!(
            "a batch of {bytes} bytes: through a coordinator it may have {MAX_MESSAGE}, so write it in several"
        );
        return Err(OverrideStoreError::Unfit {
            index: None,
            reason,
        });
    }
    Ok(Call::Apply(lines))
}

/// The call for the changes after a position.
#[must_use]
pub fn since(position: &Position, most: usize) -> Call {
    Call::Since(proto::OverridesSince {
        position: position.to_string(),
        most: most as u64,
    })
}

/// The progress of a follower, as a message.
#[must_use]
pub fn follower(name: &str, seen: &Position, behind: Duration) -> proto::OverrideFollower {
    proto::OverrideFollower {
        name: name.to_owned(),
        position: seen.to_string(),
        behind_ms: u64::try_from(behind.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The JSON of the deletion of an id, which has all of it.
fn deleted(id: &OverrideId) -> String {
    let id = id.clone();
    AppliedChange::Deleted { id, revision: 0 }.to_json()
}

fn read_id(text: &str) -> Result<OverrideId, WireOverridesError> {
    let read = AppliedChange::from_json(text.as_bytes()).map_err(wrong)?;
    Ok(read.id().clone())
}

fn read_position(text: &str) -> Result<Position, WireOverridesError> {
    let position = Position::parse(text).filter(|_| text.len() <= MAX_POSITION);
    position.ok_or_else(|| wrong("the text of a position cannot be read"))
}

fn read_cursor(text: &str) -> Result<Option<Cursor>, WireOverridesError> {
    if text.is_empty() {
        return Ok(None);
    }
    let cursor = Cursor::parse(text);
    cursor
        .map(Some)
        .ok_or_else(|| wrong("a cursor cannot be read"))
}

/// The changes on the lines of a call.
fn read_changes(lines: &str) -> Result<Vec<Change>, WireOverridesError> {
    if lines.lines().count() > MAX_OVERRIDE_BATCH {
        return Err(wrong(format!(
            "a batch may have {MAX_OVERRIDE_BATCH} changes"
        )));
    }
    let read = lines.lines().map(|line| {
        let (expected, json) = line.split_once(' ').ok_or_else(|| wrong("no change"))?;
        let expected = match expected {
            "-" => None,
            number => Some(number.parse().map_err(wrong)?),
        };
        let change = AppliedChange::from_json(json.as_bytes()).map_err(wrong)?;
        Ok(match change {
            AppliedChange::Put(record) => Change::Put { record, expected },
            AppliedChange::Deleted { id, .. } => Change::Delete { id, expected },
        })
    });
    read.collect()
}

fn filter_of(list: &proto::OverrideList) -> Option<OverrideFilter> {
    let domain = list.domain.as_deref()?;
    Some(OverrideFilter {
        rule: match list.rule.as_deref() {
            None => RuleFilter::Any,
            Some(STAR) => RuleFilter::Star,
            Some(rule) => RuleFilter::Named(rule.into()),
        },
        prefix: list.prefix.as_str().into(),
        plan: list.plan.as_deref().map(Arc::from),
        ..OverrideFilter::domain(domain)
    })
}

/// Number of changes that a call would make; a call that would make some has at least 1.
#[must_use]
pub fn changes_of(call: &proto::OverrideCall) -> usize {
    match &call.kind {
        Some(Call::Apply(lines)) => lines.lines().count().max(1),
        _ => 0,
    }
}

/// Returns true if a call is of a follower about itself.
#[must_use]
pub const fn is_of_follower(call: &proto::OverrideCall) -> bool {
    matches!(
        call.kind,
        Some(Call::WaitAs(_) | Call::Report(_) | Call::Leave(_))
    )
}

/// The result of changes, for a log: in a word, and the position of the store after them.
#[must_use]
pub fn outcome_of(answer: &proto::OverrideAnswer) -> (&'static str, &str) {
    match &answer.kind {
        Some(Answer::Applied(applied)) => ("made", &applied.position),
        Some(Answer::Conflict(_)) => ("conflict", ""),
        Some(Answer::Failed(failure)) => ("failed", &failure.reason),
        _ => ("unknown", ""),
    }
}

/// Answers a call from a store. A wait takes at most [`LONGEST_WAIT`].
///
/// # Errors
/// If it is no call.
pub async fn answer(
    store: &dyn OverrideStore,
    call: proto::OverrideCall,
) -> Result<proto::OverrideAnswer, WireOverridesError> {
    let kind = call.kind.ok_or(WireOverridesError::Kind)?;
    let kind = match kind {
        Call::Position(_) => position_of(store.position().await),
        Call::Get(id) => match store.get(&read_id(&id)?).await {
            Ok(stored) => Answer::Stored(stored.map_or_else(String::new, |one| one.to_json())),
            Err(error) => failed(error),
        },
        Call::List(list) => {
            let (after, most) = (read_cursor(&list.after)?, most_of(list.most));
            let page = match filter_of(&list) {
                Some(filter) => store.list(&filter, after.as_ref(), most).await,
                None => store.all(after.as_ref(), most).await,
            };
            match page {
                Ok(page) => Answer::Page(proto::OverridePage {
                    lines: lines(page.overrides.iter().map(StoredOverride::to_json)),
                    next: page
                        .next
                        .map_or_else(String::new, |next| next.as_str().to_owned()),
                }),
                Err(error) => failed(error),
            }
        }
        Call::Apply(changes) => made(store, changes).await?,
        Call::Since(since) => {
            let position = read_position(&since.position)?;
            match store.changes(&position, most_of(since.most)).await {
                Ok(Changes::Since {
                    changes,
                    position,
                    newest,
                }) => Answer::Changes(proto::OverrideChanges {
                    lines: lines(changes.iter().map(AppliedChange::to_json)),
                    position: position.to_string(),
                    newest,
                }),
                Ok(Changes::TooOld) => Answer::Gone(false),
                Ok(Changes::Lost) => Answer::Gone(true),
                Err(error) => failed(error),
            }
        }
        Call::Wait(seen) => {
            let seen = read_position(&seen)?;
            let waited = tokio::time::timeout(LONGEST_WAIT, store.wait(&seen)).await;
            // The same answer in time or not: who waited asks for the changes.
            waited.ok();
            Answer::Done(true)
        }
        Call::WaitAs(_) | Call::Report(_) | Call::Leave(_) | Call::Followers(_) => {
            of_followers(store, kind).await?
        }
    };
    Ok(proto::OverrideAnswer { kind: Some(kind) })
}

/// Makes the changes of a call.
async fn made(store: &dyn OverrideStore, changes: String) -> Result<Answer, WireOverridesError> {
    let read = read_changes(&changes)?;
    drop(changes);
    Ok(match store.apply(&read).await {
        Ok(ApplyOutcome::Applied {
            revisions,
            position,
        }) => Answer::Applied(proto::OverridesApplied {
            revisions: revisions
                .into_iter()
                .map(Option::unwrap_or_default)
                .collect(),
            position: position.to_string(),
        }),
        Ok(ApplyOutcome::Conflict { index, current }) => {
            let index = index as u64;
            Answer::Conflict(proto::OverrideConflict { index, current })
        }
        Err(error) => failed(error),
    })
}

/// Answers a call of, or about, followers.
async fn of_followers(store: &dyn OverrideStore, call: Call) -> Result<Answer, WireOverridesError> {
    Ok(match call {
        Call::WaitAs(follower) => {
            let (seen, _) = read_follower(&follower)?;
            let wait = store.wait_as(&follower.name, &seen);
            tokio::time::timeout(LONGEST_WAIT, wait).await.ok();
            Answer::Done(true)
        }
        Call::Report(follower) => {
            let (seen, behind) = read_follower(&follower)?;
            done(store.report(&follower.name, &seen, behind).await)
        }
        Call::Leave(name) => done(store.leave(&name).await),
        Call::Followers(_) => match store.followers().await {
            Ok(followers) => Answer::Followers(lines(followers.iter().map(|one| {
                let (revision, behind) = (one.revision, one.behind.as_millis());
                format!("{revision} {behind} {}", one.name)
            }))),
            Err(error) => failed(error),
        },
        _ => return Err(WireOverridesError::Kind),
    })
}

/// The position of a follower, and for how long it has lacked something.
fn read_follower(
    follower: &proto::OverrideFollower,
) -> Result<(Position, Duration), WireOverridesError> {
    let is_plain = |byte: u8| byte.is_ascii_graphic();
    if follower.name.len() > MAX_FOLLOWER || !follower.name.bytes().all(is_plain) {
        return Err(wrong(format!(
            "the name of a follower has at most {MAX_FOLLOWER} characters, and no spaces"
        )));
    }
    let behind = Duration::from_millis(follower.behind_ms);
    Ok((read_position(&follower.position)?, behind))
}

fn done(done: Result<(), OverrideStoreError>) -> Answer {
    done.map_or_else(failed, |()| Answer::Done(true))
}

fn most_of(most: u64) -> usize {
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn lines(all: impl Iterator<Item = String>) -> String {
    let mut lines = String::new();
    for json in all {
        lines.push_str(&json);
        lines.push('\n');
    }
    lines
}

fn position_of(position: Result<Position, OverrideStoreError>) -> Answer {
    match position {
        Ok(position) => Answer::Position(position.to_string()),
        Err(error) => failed(error),
    }
}

fn failed(error: OverrideStoreError) -> Answer {
    let reason = error.to_string();
    let failure = |kind| proto::OverrideFailure {
        kind,
        reason,
        what: String::new(),
        index: None,
    };
    Answer::Failed(match error {
        OverrideStoreError::Unknown(_) => failure(2),
        OverrideStoreError::Unfit { index, .. } => proto::OverrideFailure {
            index: index.map(|index| index as u64),
            ..failure(3)
        },
        OverrideStoreError::ForeignCursor => failure(4),
        OverrideStoreError::Damaged { what, reason } => proto::OverrideFailure {
            kind: 5,
            reason,
            what,
            index: None,
        },
        OverrideStoreError::Refused(_) => failure(6),
        OverrideStoreError::Full { count, most } => proto::OverrideFailure {
            what: format!("{count} {most}"),
            ..failure(7)
        },
        _ => failure(1),
    })
}

/// The failure that a coordinator tells.
fn failure_of(failure: proto::OverrideFailure) -> OverrideStoreError {
    let reason = failure.reason;
    match failure.kind {
        2 => OverrideStoreError::Unknown(reason),
        3 => OverrideStoreError::Unfit {
            index: failure.index.and_then(|index| usize::try_from(index).ok()),
            reason,
        },
        4 => OverrideStoreError::ForeignCursor,
        5 => OverrideStoreError::damaged(failure.what, reason),
        6 => OverrideStoreError::Refused(reason),
        7 => match failure
            .what
            .split_once(' ')
            .map(|(count, most)| (count.parse(), most.parse()))
        {
            Some((Ok(count), Ok(most))) => OverrideStoreError::Full { count, most },
            _ => OverrideStoreError::NoAnswer(reason),
        },
        _ => OverrideStoreError::NoAnswer(reason),
    }
}

/// An answer that is not one to the call, or that cannot be read.
fn unreadable(error: impl ToString) -> OverrideStoreError {
    let error = error.to_string();
    OverrideStoreError::NoAnswer(format!("a coordinator's answer cannot be read: {error}"))
}

/// Reads the answer to a call; the reading of the kind that belongs to it is `read`.
fn of_kind<T>(
    answer: proto::OverrideAnswer,
    read: impl FnOnce(Answer) -> Result<T, WireOverridesError>,
) -> Result<T, OverrideStoreError> {
    match answer.kind {
        Some(Answer::Failed(failure)) => Err(failure_of(failure)),
        Some(kind) => read(kind).map_err(unreadable),
        None => Err(unreadable(WireOverridesError::Kind)),
    }
}

/// Reads a position.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_newest(answer: proto::OverrideAnswer) -> Result<Position, OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Position(text) => read_position(&text),
        _ => Err(WireOverridesError::Kind),
    })
}

/// Reads an override.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_stored(
    answer: proto::OverrideAnswer,
) -> Result<Option<StoredOverride>, OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Stored(text) if text.is_empty() => Ok(None),
        Answer::Stored(text) => {
            let stored = StoredOverride::from_json(text.as_bytes());
            stored.map(Some).map_err(wrong)
        }
        _ => Err(WireOverridesError::Kind),
    })
}

/// Reads a page.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_page(answer: proto::OverrideAnswer) -> Result<Page, OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Page(page) => {
            let read = page.lines.lines();
            let read = read.map(|line| StoredOverride::from_json(line.as_bytes()).map_err(wrong));
            Ok(Page {
                overrides: read.collect::<Result<_, _>>()?,
                next: read_cursor(&page.next)?,
            })
        }
        _ => Err(WireOverridesError::Kind),
    })
}

/// Reads the result of changes.
///
/// # Errors
/// The failure that is told. An answer that cannot be read is [`OverrideStoreError::Unknown`].
pub fn read_outcome(
    answer: proto::OverrideAnswer,
    changes: usize,
) -> Result<ApplyOutcome, OverrideStoreError> {
    let told = matches!(answer.kind, Some(Answer::Failed(_)));
    let outcome = of_kind(answer, |kind| match kind {
        Answer::Applied(applied) if applied.revisions.len() == changes => {
            let revisions = applied.revisions.into_iter();
            Ok(ApplyOutcome::Applied {
                revisions: revisions
                    .map(|revision| Some(revision).filter(|revision| *revision > 0))
                    .collect(),
                position: read_position(&applied.position)?,
            })
        }
        Answer::Conflict(conflict) => Ok(ApplyOutcome::Conflict {
            index: most_of(conflict.index),
            current: conflict.current,
        }),
        _ => Err(WireOverridesError::Kind),
    });
    outcome.map_err(|error| match error {
        OverrideStoreError::NoAnswer(reason) if !told => OverrideStoreError::Unknown(reason),
        error => error,
    })
}

/// Reads changes.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_since(answer: proto::OverrideAnswer) -> Result<Changes, OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Gone(true) => Ok(Changes::Lost),
        Answer::Gone(false) => Ok(Changes::TooOld),
        Answer::Changes(since) => {
            let read = since.lines.lines();
            let read = read.map(|line| AppliedChange::from_json(line.as_bytes()).map_err(wrong));
            Ok(Changes::Since {
                changes: read.collect::<Result<_, _>>()?,
                position: read_position(&since.position)?,
                newest: since.newest,
            })
        }
        _ => Err(WireOverridesError::Kind),
    })
}

/// Reads that something is done.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_done(answer: proto::OverrideAnswer) -> Result<(), OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Done(_) => Ok(()),
        _ => Err(WireOverridesError::Kind),
    })
}

/// Reads followers.
///
/// # Errors
/// The failure that is told, or that it is no such answer.
pub fn read_followers(answer: proto::OverrideAnswer) -> Result<Vec<Follower>, OverrideStoreError> {
    of_kind(answer, |kind| match kind {
        Answer::Followers(lines) => {
            let read = lines.lines().map(|line| {
                let mut parts = line.splitn(3, ' ');
                let mut part = || parts.next().ok_or_else(|| wrong("no follower"));
                let (revision, behind) = (part()?, part()?);
                Ok(Follower {
                    revision: revision.parse().map_err(wrong)?,
                    behind: Duration::from_millis(behind.parse().map_err(wrong)?),
                    name: part()?.into(),
                })
            });
            read.collect()
        }
        _ => Err(WireOverridesError::Kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_told_with_its_numbers() {
        let full = OverrideStoreError::Full { count: 8, most: 7 };
        let Answer::Failed(mut failure) = failed(full.clone()) else {
            panic!("it is a failure");
        };
        assert_eq!(failure_of(failure.clone()), full);
        failure.what = "8".to_owned();
        assert_eq!(
            failure_of(failure),
            OverrideStoreError::NoAnswer(full.to_string())
        );
    }
}
