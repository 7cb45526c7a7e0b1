//! Raise: how an operator's new generation gets into the store, whichever coordinator is asked.
//!
//! It is the one write without the leader's key. After a restore the key may belong to nobody, or to a
//! leader that is not to decide anything; and who leads obeys a record of a higher generation as soon as
//! it sees it. What keeps it apart from a leader's writes is that each replaces the record that it was
//! made from, and no other.

use std::time::Duration;

use quell_shares::plan::{Record, Restored};
use tokio::time::sleep;

use super::ChangeError;
use crate::codec::{decode_record, fit_record};
use crate::session::{Session, key};
use crate::store::{Condition, ConfigStore, Write};

/// How often it is tried when the record changes at the same time, or the store does not answer. A leader
/// writes some records in a second at most.
const TRIES: usize = 20;

/// The time between two of them.
const PAUSE: Duration = Duration::from_millis(50);

/// Raises the generation of the stored record.
pub(super) async fn raise<S: ConfigStore>(
    session: &Session<S>,
    to: u64,
    lease: Duration,
) -> Result<(), ChangeError> {
    let mut last = ChangeError::Conflict;
    for tried in 0..TRIES {
        match try_raise(session, to, lease).await {
            Ok(true) => return Ok(()),
            Ok(false) => last = ChangeError::Conflict,
            // The answer of the try before may have been lost.
            Err(ChangeError::Wrong(_)) if tried > 0 && is_raised(session, to).await => {
                return Ok(());
            }
            Err(ChangeError::Store(error)) if error.is_passing() => last = error.into(),
            Err(error) => return Err(error),
        }
        sleep(PAUSE).await;
    }
    Err(last)
}

/// Whether it is written; not if the record changed at the same time.
async fn try_raise<S: ConfigStore>(
    session: &Session<S>,
    to: u64,
    lease: Duration,
) -> Result<bool, ChangeError> {
    let Some((mut record, changed)) = read(session).await? else {
        let text = "this fleet has no record yet: there is nothing to raise";
        return Err(ChangeError::Refused(text.to_owned()));
    };
    let longest = Restored {
        lease: record.plan.timing.lease.max(lease),
    };
    let raised = record.raise_generation(to, longest);
    raised.map_err(|error| ChangeError::Wrong(error.to_string()))?;
    let writes = vec![Write::put(key::RECORD, fit_record(&mut record)?)];
    let unchanged = Condition::Changed {
        key: key::RECORD.to_owned(),
        revision: changed,
    };
    let written = session.write_without_key(vec![unchanged], writes).await?;
    Ok(written.succeeded)
}

async fn is_raised<S: ConfigStore>(session: &Session<S>, to: u64) -> bool {
    let read = read(session).await;
    matches!(read, Ok(Some((record, _))) if record.generation() == to)
}

/// The stored record, and the revision that changed it.
async fn read<S: ConfigStore>(session: &Session<S>) -> Result<Option<(Record, u64)>, ChangeError> {
    let listing = session.read().await?;
    let key = session.options().key(key::RECORD);
    let entry = listing.entries.get(&key);
    let read = entry.map(|entry| Ok((decode_record(&entry.value)?, entry.changed)));
    read.transpose()
}
