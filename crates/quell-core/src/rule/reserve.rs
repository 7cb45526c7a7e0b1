//! Reserve: how Envoy's calls reserve an estimate under a rule, and settle it when their stream ends.

use alloc::sync::Arc;
use core::time::Duration;

/// Time after which a reservation can no longer be lowered, unless the rules say otherwise: longer than a model
/// usually answers.
const DEFAULT_TTL: Duration = Duration::from_secs(120);

/// Entries of a descriptor that tell a reservation from its settlement. They are no part of the key. All rules of a
/// domain that reserve agree in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The entry whose value is `reserve` or `settle`.
    pub phase: Arc<str>,
    /// The entry that names the reservation to be settled, and the field of the answer that issues it.
    pub id: Arc<str>,
    /// Time from the charge of an estimate after which nothing of it is given back.
    pub ttl: Duration,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            phase: Arc::from("phase"),
            id: Arc::from("reservation"),
            ttl: DEFAULT_TTL,
        }
    }
}
