//! Generation raise: how an operator's new generation gets into the store, whichever coordinator is asked.
//!
//! It is the one write without the leader's key. After a restore the key may belong to nobody, or to a
//! leader that is not to decide anything; and who leads obeys a record of a higher generation as soon as
//! it sees it.
//!
//! A store that was restored gives revisions again, so the raised record may have the revision of the one
//! that a leader knows: it would take that one for its own, and write over it. So the leader's key goes
//! with the raise, and its lease after it. No other key has the same lease.

use std::time::Duration;

use quell_shares::plan::{Record, Restored};
use tokio::time::sleep;

use super::ChangeError;
use crate::codec::{decode_record, fit_record};
use crate::session::{Session, key};
use crate::store::{Condition, ConfigStore, Listing, Write};

/// Most tries when the record changes at the same time, or the store does not answer. A leader
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

/// Tries to write the raised generation; returns false if the record changed at the same time.
async fn try_raise<S: ConfigStore>(
    session: &Session<S>,
    to: u64,
    lease: Duration,
) -> Result<bool, ChangeError> {
    let listing = session.read().await?;
    let Some((mut record, changed)) = find(session, &listing)? else {
        let text = "this fleet has no record yet: there is nothing to raise";
        return Err(ChangeError::Refused(text.to_owned()));
    };
    let longest = Restored {
        lease: record.plan.timing.lease.max(lease),
    };
    let raised = record.raise_generation(to, longest);
    raised.map_err(|error| ChangeError::Wrong(error.to_string()))?;
    let writes = vec![
        Write::put(key::RECORD, fit_record(&mut record)?),
        Write::delete(key::LEADER),
    ];
    let unchanged = Condition::Changed {
        key: key::RECORD.to_owned(),
        revision: changed,
    };
    let written = session.write_without_key(vec![unchanged], writes).await?;
    let leader = listing.entries.get(&session.options().key(key::LEADER));
    if let Some(lease) = leader.and_then(|entry| entry.lease)
        && written.succeeded
    {
        // A leader whose watch shows nothing notices by its next keep-alive. It has its key no more in any case.
        session.revoke(lease).await.ok();
    }
    Ok(written.succeeded)
}

async fn is_raised<S: ConfigStore>(session: &Session<S>, to: u64) -> bool {
    let Ok(listing) = session.read().await else {
        return false;
    };
    matches!(find(session, &listing), Ok(Some((record, _))) if record.generation() == to)
}

/// The stored record, and the revision that changed it.
fn find<S: ConfigStore>(
    session: &Session<S>,
    listing: &Listing,
) -> Result<Option<(Record, u64)>, ChangeError> {
    let entry = listing.entries.get(&session.options().key(key::RECORD));
    let found = entry.map(|entry| Ok((decode_record(&entry.value)?, entry.changed)));
    found.transpose()
}
