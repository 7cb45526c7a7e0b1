//! Reads replies, and checks them, since other programs can change what is in Redis.

use std::time::Duration;

use quell::override_store::{
    AppliedChange, ApplyOutcome, Changes, Follower, OverrideStoreError, Position, StoredOverride,
};

use super::encode::Place;
use crate::resp::Value;

/// Part of a list.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) overrides: Vec<StoredOverride>,
    /// Bytes of their JSON.
    pub(super) bytes: usize,
    /// Overrides that were looked at.
    pub(super) looked: usize,
    /// The place where the list goes on.
    pub(super) next: Option<Place>,
}

impl Listed {
    /// A reply of the script that lists.
    pub(super) fn new(reply: Value) -> Result<Self, OverrideStoreError> {
        let mut texts = texts(reply)?.into_iter();
        let mut next = || texts.next().ok_or_else(odd);
        let (bucket, field, looked) = (next()?, next()?, next()?);
        let next = match bucket.as_str() {
            "" => None,
            bucket => Some(Place {
                bucket: number(bucket)?,
                field,
            }),
        };
        let (mut overrides, mut bytes) = (Vec::new(), 0);
        for json in texts {
            bytes += json.len();
            overrides.push(parse(&json, "an override in Redis")?);
        }
        Ok(Self {
            overrides,
            bytes,
            looked: number(&looked)?,
            next,
        })
    }
}

/// The position that a reply to `GET` of the head is.
pub(super) fn head(reply: Value) -> Result<Position, OverrideStoreError> {
    if reply == Value::Nil {
        return Ok(Position::default());
    }
    let text: String = reply.read().ok_or_else(odd)?;
    let mut words = text.splitn(3, ' ');
    let mut word = || words.next().ok_or_else(odd);
    let (revision, tag, identity) = (number(word()?)?, number(word()?)?, word()?);
    Ok(Position::new(identity.into(), revision, tag))
}

/// The override that a reply to `HMGET` with one field is.
pub(super) fn stored(
    reply: Value,
    key: &str,
) -> Result<Option<StoredOverride>, OverrideStoreError> {
    match reply {
        Value::Array(values) => match <[Value; 1]>::try_from(values) {
            Ok([Value::Nil]) => Ok(None),
            Ok([value]) => {
                let json: String = value.read().ok_or_else(odd)?;
                parse(&json, key).map(Some)
            }
            Err(_) => Err(odd()),
        },
        _ => Err(odd()),
    }
}

/// The outcome of a batch of so many changes, where there may be `most` overrides; `None` if there was nothing to change.
pub(super) fn outcome(
    reply: Value,
    changes: usize,
    (tag, most): (u64, u64),
) -> Result<Option<ApplyOutcome>, OverrideStoreError> {
    let texts = texts(reply).map_err(written)?;
    match texts.as_slice() {
        [word, index, current] if word == "conflict" => Ok(Some(ApplyOutcome::Conflict {
            index: number(index).map_err(written)?,
            current: number(current).map_err(written)?,
        })),
        [word, count] if word == "full" => Err(OverrideStoreError::Full {
            count: number(count).map_err(written)?,
            most,
        }),
        [word, identity, before, nothing @ ..] if word == "applied" => {
            let nothing = nothing.iter().map(|index| number::<usize>(index));
            let nothing = nothing.collect::<Result<Vec<_>, _>>().map_err(written)?;
            let mut revision: u64 = number(before).map_err(written)?;
            if nothing.len() == changes {
                return Ok(None);
            }
            let mut nothing = nothing.into_iter().peekable();
            let revisions = (0..changes).map(|index| {
                if nothing.next_if_eq(&index).is_some() {
                    return None;
                }
                revision = revision.saturating_add(1);
                Some(revision)
            });
            let revisions = revisions.collect();
            Ok(Some(ApplyOutcome::Applied {
                revisions,
                position: Position::new(identity.as_str().into(), revision, tag),
            }))
        }
        _ => Err(written(odd())),
    }
}

/// The changes since a position.
pub(super) fn changes(reply: Value, since: &Position) -> Result<Changes, OverrideStoreError> {
    let mut texts = texts(reply)?.into_iter();
    let newest = match texts.next() {
        None => return Ok(Changes::TooOld),
        Some(lost) if lost == "lost" => return Ok(Changes::Lost),
        Some(newest) => newest,
    };
    let position = match texts.next().ok_or_else(odd)?.split_once('-') {
        Some((revision, tag)) => since.at(number(revision)?, number(tag)?),
        None => since.clone(),
    };
    let changes = texts.map(|json| {
        let change = AppliedChange::from_json(json.as_bytes());
        change.map_err(|error| damaged("a change in Redis", &error))
    });
    Ok(Changes::Since {
        changes: changes.collect::<Result<_, _>>()?,
        position,
        newest: number(&newest)?,
    })
}

/// The followers, in the order of their names.
pub(super) fn followers(reply: Value) -> Result<Vec<Follower>, OverrideStoreError> {
    let mut texts = texts(reply)?.into_iter();
    let mut followers = Vec::new();
    while let Some(name) = texts.next() {
        let mut text = || texts.next().ok_or_else(odd);
        let (revision, behind) = (number(&text()?)?, number(&text()?)?);
        followers.push(Follower {
            name: name.into(),
            revision,
            behind: Duration::from_millis(behind),
        });
    }
    followers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(followers)
}

fn parse(json: &str, what: &str) -> Result<StoredOverride, OverrideStoreError> {
    let stored = StoredOverride::from_json(json.as_bytes());
    stored.map_err(|error| damaged(what, &error))
}

fn damaged(what: &str, error: &impl ToString) -> OverrideStoreError {
    OverrideStoreError::damaged(what, format!("cannot be read ({})", error.to_string()))
}

fn texts(reply: Value) -> Result<Vec<String>, OverrideStoreError> {
    reply.read().ok_or_else(odd)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, OverrideStoreError> {
    text.parse().map_err(|_| odd())
}

fn odd() -> OverrideStoreError {
    OverrideStoreError::NoAnswer("the overrides in Redis are not as Quell writes them".to_owned())
}

/// The same after a write, which may have been made.
fn written(error: OverrideStoreError) -> OverrideStoreError {
    OverrideStoreError::Unknown(error.to_string())
}
