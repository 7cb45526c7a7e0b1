//! The part of the configuration that says which headers `/v1/authorize` believes.

use quell_protocol::http::{AuthorizeMap, EntrySource, Reading};

use super::raw::{RawAuthorize, RawEntrySource};
use super::{ConfigError, field};

/// Most entries that a map may name: each is looked for among the headers of every request.
const MAX_ENTRIES: usize = 32;

/// What is said about headers, as a map.
pub(super) fn resolve(raw: &RawAuthorize) -> Result<AuthorizeMap, ConfigError> {
    let mut map = match raw.gateway.as_deref() {
        None | Some("any") => AuthorizeMap::default(),
        Some("original") => AuthorizeMap::original(),
        Some("forwarded") => AuthorizeMap::forwarded(),
        Some(other) => {
            let reason = format!(
                "`{other}` is no gateway: write any, original (nginx) or forwarded (Traefik, Caddy)"
            );
            return Err(field("authorize.gateway", reason));
        }
    };
    if let Some(prefix) = &raw.prefix {
        map.prefix = (!prefix.is_empty()).then(|| prefix.to_ascii_lowercase());
    }
    map.path.ignore_case = raw.ignore_case.unwrap_or_default();
    map.path.keep_encoded_slashes = match raw.encoded_slashes.as_deref() {
        None | Some("refuse") => false,
        Some("keep") => true,
        Some(other) => {
            let reason = format!("`{other}` is nothing to do with `%2F`: write refuse or keep");
            return Err(field("authorize.encoded_slashes", reason));
        }
    };
    for source in raw.entries.iter().flatten() {
        let source = entry(source)?;
        match map.entries.iter_mut().find(|e| e.entry == source.entry) {
            Some(known) => *known = source,
            None => map.entries.push(source),
        }
    }
    if map.entries.len() > MAX_ENTRIES {
        let reason = format!("more than {MAX_ENTRIES} entries: write fewer");
        return Err(field("authorize.entries", reason));
    }
    Ok(map)
}

fn entry(raw: &RawEntrySource) -> Result<EntrySource, ConfigError> {
    let wrong = |reason| field("authorize.entries", reason);
    if raw.entry.is_empty() || raw.headers.is_empty() {
        let reason = "an entry needs a name and a header: write { entry = \"tenant\", headers = [\"x-tenant\"] }";
        return Err(wrong(reason.to_owned()));
    }
    let reading = match raw.reading.as_deref() {
        None | Some("plain") => Reading::Plain,
        Some("path") => Reading::Path,
        Some("address") => Reading::Address,
        Some("host") => Reading::Host,
        Some(other) => {
            let reason = format!("`{other}` is no reading: write plain, path, host or address");
            return Err(wrong(reason));
        }
    };
    Ok(EntrySource {
        entry: raw.entry.clone(),
        reading,
        headers: raw.headers.iter().map(|h| h.to_ascii_lowercase()).collect(),
    })
}
