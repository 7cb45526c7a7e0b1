//! Key address: a key in a path and its parameters, `/v1/overrides/shop/api?tenant=acme`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use quell::override_store::OverrideId;
use quell_protocol::http::Problem;
use quell_rules::parse_duration;

use super::{KeyPath, MAX_WAIT};
use crate::http::reply::{self, parameters};
use crate::overrides::{WhichOverride, key_id};
use crate::shared::Shared;

/// A key, and what is asked beside it.
#[derive(Debug)]
pub(in crate::http) struct KeyAddress {
    pub(super) domain: Arc<str>,
    /// `None` for every rule.
    pub(super) rule: Option<Arc<str>>,
    entries: Vec<(Arc<str>, Arc<str>)>,
    /// `wait`: for how long to wait until a change is in force.
    pub(super) wait: Option<Duration>,
    /// `which`: one of the two overrides of the key.
    pub(super) which: Option<WhichOverride>,
}

/// Parameters that are never entries.
const RESERVED: [&str; 2] = ["wait", "which"];

impl KeyAddress {
    /// The address of a key, or of the one of its overrides that is named. The rule `*` is every rule.
    pub(in crate::http) fn new(
        domain: &str,
        rule: &str,
        entries: &BTreeMap<&str, &str>,
        which: Option<WhichOverride>,
    ) -> Self {
        let entries = entries.iter();
        Self {
            domain: domain.into(),
            rule: (rule != "*").then(|| rule.into()),
            entries: entries
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            wait: None,
            which,
        }
    }

    /// Reads an address that may have these of the reserved parameters.
    pub(super) fn read(
        path: KeyPath,
        query: Option<&str>,
        reserved: &[&str],
    ) -> Result<Self, Box<Problem>> {
        let Path((domain, rule)) = path.map_err(|error| reply::invalid(error.body_text()))?;
        let mut address = Self::new(&domain, &rule, &BTreeMap::new(), None);
        for (name, value) in parameters(query) {
            match &*name {
                name if RESERVED.contains(&name) && !reserved.contains(&name) => {
                    return Err(reply::invalid(format!(
                        "`{name}` is no entry, and this method does not have it: leave it out"
                    )));
                }
                "wait" => address.wait = Some(read_wait(&value)?),
                "which" => {
                    let which = WhichOverride::parse(&value);
                    let which =
                        which.map_err(|why| reply::invalid(format!("which={value}: {why}")))?;
                    address.which = Some(which);
                }
                _ => address.entries.push((name.into(), value.into())),
            }
        }
        Ok(address)
    }

    /// The id of one of its overrides.
    pub(super) fn id(&self, shared: &Shared, has_end: bool) -> Result<OverrideId, Box<Problem>> {
        let key = (&self.domain, self.rule.as_ref());
        let id = key_id(shared, key, &self.entries, has_end);
        id.map_err(|error| reply::invalid(error.to_string()))
    }

    /// The ids under which there may be one of its overrides: the one of the key, and the one with addresses as they are
    /// written here. Rules counted other addresses as one when that was stored.
    pub(super) fn ids(
        &self,
        shared: &Shared,
        has_end: bool,
    ) -> Result<Vec<OverrideId>, Box<Problem>> {
        let own = self.id(shared, has_end)?;
        let entries = self.entries.iter().cloned();
        let written = OverrideId::new(
            Arc::clone(&self.domain),
            self.rule.clone(),
            entries,
            has_end,
        );
        let written = written.ok().filter(|written| *written != own);
        Ok([own].into_iter().chain(written).collect())
    }

    /// Its entries in an answer.
    pub(super) fn entries_body(&self) -> BTreeMap<String, String> {
        let entries = self.entries.iter();
        entries
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }
}

/// Reads `wait`.
pub(super) fn read_wait(value: &str) -> Result<Duration, Box<Problem>> {
    match parse_duration(value) {
        Ok(wait) if wait <= MAX_WAIT => Ok(wait),
        Ok(_) => Err(reply::invalid(format!(
            "wait={value} is too long: write at most {} s",
            MAX_WAIT.as_secs()
        ))),
        Err(why) => Err(reply::invalid(format!("wait={value}: {why}"))),
    }
}
