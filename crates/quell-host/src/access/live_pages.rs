//! Live pages: how many pages of a console are kept up to date, in all and for one visitor. Other streams without an
//! end are counted so too.
//!
//! Each takes some kilobytes, and a list of keys a second. One person with many windows leaves places for others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use quell_protocol::http::{Problem, ProblemKind};

use super::Caller;
use super::visits::{Visitor, visitor};

/// Pages that are kept up to date at a time.
const MAX_LIVE: usize = 64;

/// Of one person, or of the strangers of one address.
const MAX_LIVE_OF_ONE: usize = 16;

/// The pages that are kept up to date.
#[derive(Debug, Default)]
pub struct LivePages(Mutex<HashMap<Visitor, usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct LivePage {
    pages: Arc<LivePages>,
    visitor: Visitor,
}

impl LivePages {
    /// Begins to keep a page up to date, or says why not.
    ///
    /// # Errors
    /// There are too many.
    pub fn begin(
        self: &Arc<Self>,
        caller: &Caller,
        address: Option<IpAddr>,
    ) -> Result<LivePage, Box<Problem>> {
        let visitor = visitor(caller, address);
        let mut pages = self.0.lock();
        let all: usize = pages.values().sum();
        let own = pages.get(&visitor).copied().unwrap_or(0);
        if all >= MAX_LIVE || own >= MAX_LIVE_OF_ONE {
            let detail = "too many pages are kept up to date: close some, and reload this one";
            return Err(Problem::new(ProblemKind::Overloaded, detail).into());
        }
        pages.insert(visitor.clone(), own + 1);
        let pages = Arc::clone(self);
        Ok(LivePage { pages, visitor })
    }
}

impl Drop for LivePage {
    fn drop(&mut self) {
        let mut pages = self.pages.0.lock();
        if let Some(own) = pages.get_mut(&self.visitor) {
            *own -= 1;
            if *own == 0 {
                pages.remove(&self.visitor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_visitor_leaves_places_for_others_and_all_are_bounded() {
        let pages = Arc::<LivePages>::default();
        let begin = |address: &str| pages.begin(&Caller::Stranger, address.parse().ok());
        let mut own: Vec<_> =
            { (0..MAX_LIVE_OF_ONE).map(|_| begin("10.0.0.1").unwrap()) }.collect();
        let refused = begin("10.0.0.1").unwrap_err();
        assert_eq!(refused.status, 503);
        own.pop();
        own.push(begin("10.0.0.1").unwrap());
        for address in 2..=4 {
            let address = format!("10.0.0.{address}");
            own.extend((0..MAX_LIVE_OF_ONE).map(|_| begin(&address).unwrap()));
        }
        assert_eq!(own.len(), MAX_LIVE);
        begin("10.0.0.9").unwrap_err();
        drop(own);
        assert!(pages.0.lock().is_empty());
    }
}
