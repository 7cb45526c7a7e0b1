//! Locks and flags whose order matters. In a model test a scheduler chooses which task runs next at
//! each of them; elsewhere they are those of `parking_lot` and `std`.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(crate) use quell_testkit::model::Mutex;
#[cfg(test)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
