//! Layers over a store that other processes share. A call goes from the top to the bottom, as far as it has to:
//!
//! ```text
//! RungStore      strict limits to the shared store, local ones to the memory of this process
//! SharesStore    shares of a fleet, in memory; everything else goes on
//! FallbackStore  the declared answer while the store is gone; what is known to refuse is refused at once
//! LeasedStore    units that were charged in advance, and charges that are paid afterwards
//! RemoteStore    the store itself
//! ```

pub mod fallback;
pub mod leased;
pub mod remote;
pub mod rungs;
pub mod shares;
pub mod split;

mod sync;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
