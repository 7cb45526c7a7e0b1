//! Later: overrides without an end that begin later, and would end at once what stands now.

use quell::override_store::{OverrideId, OverrideStoreError, StoredOverride};
use quell_core::time::Wall;

use super::{OverrideProblem, instant_text};
use crate::shared::Shared;

/// Advice how to end what stands now, for somebody who means that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndNow {
    /// By a request with the revision that stands.
    ByCondition,
    /// By a deletion before, where people see a page.
    ByDeletion,
}

/// The boost of a key, once an override of the same key is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BoostThen<'r> {
    /// The one that is stored.
    AsStored,
    /// This one, which is written with it.
    Written(&'r StoredOverride),
    /// None: it is deleted with it.
    Deleted,
}

impl Shared {
    /// Refuses an override without an end that begins later, if a standing one applies now and no boost takes its place
    /// until then: the key would have the numbers of its rule meanwhile, which nobody means.
    ///
    /// # Errors
    /// Advice in place of it, or that the store does not answer.
    pub(crate) async fn check_later(
        &self,
        record: &StoredOverride,
        boost: BoostThen<'_>,
        end_now: EndNow,
        now: Wall,
    ) -> Result<(), OverrideProblem> {
        let Some(from) = record.from.filter(|from| *from > now) else {
            return Ok(());
        };
        let has_begun = |other: &StoredOverride| other.from.is_none_or(|from| from <= now);
        if record.id.has_end {
            return Ok(());
        }
        let Some(standing) = self.stored(&record.id).await?.filter(has_begun) else {
            return Ok(());
        };
        let boost = match boost {
            BoostThen::AsStored => self.stored(&record.id.counterpart()).await?,
            BoostThen::Written(boost) => Some(boost.clone()),
            BoostThen::Deleted => None,
        };
        let covers = |boost: StoredOverride| {
            has_begun(&boost) && boost.until.is_some_and(|until| until >= from)
        };
        if boost.is_some_and(covers) {
            return Ok(());
        }
        let how = match end_now {
            EndNow::ByCondition => format!(
                "send the revision that stands, {}, as a condition",
                standing.revision
            ),
            EndNow::ByDeletion => "delete the standing override before".to_owned(),
        };
        Err(OverrideProblem::Invalid(format!(
            "a key has one override without an end, so this would end the one that stands now, and the numbers of the \
             rule would apply until {from}: first write the present numbers once more with `until` {from}, or write \
             this then. To end them now, {how}",
            from = instant_text(from),
        )))
    }

    /// The override with this id. One that is damaged is none.
    async fn stored(&self, id: &OverrideId) -> Result<Option<StoredOverride>, OverrideProblem> {
        match self.overrides.store().get(id).await {
            Err(OverrideStoreError::Damaged { .. }) => Ok(None),
            record => Ok(record?),
        }
    }
}
