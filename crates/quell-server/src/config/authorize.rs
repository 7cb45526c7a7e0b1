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
        check_header("authorize.prefix", prefix)?;
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
    let said = raw.entries.as_deref().unwrap_or_default();
    for (index, raw) in said.iter().enumerate() {
        let mut before = said.iter().take(index);
        if before.any(|before| before.entry == raw.entry) {
            let name = &raw.entry;
            let reason = format!("`{name}` stands twice: write one, with all of its headers");
            return Err(field("authorize.entries", reason));
        }
        let known = map.entries.iter_mut().find(|e| e.entry == raw.entry);
        // Other headers do not make it another thing.
        let reading = known.as_ref().map_or(Reading::Plain, |known| known.reading);
        let source = entry(raw, reading)?;
        match known {
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

/// Refuses what no header can be called, which would never be there.
fn check_header(name: &'static str, header: &str) -> Result<(), ConfigError> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
    if header.bytes().all(is_of_name) {
        return Ok(());
    }
    let reason = format!("`{header}` is no name of a header: write one such as x-tenant");
    Err(field(name, reason))
}

/// An entry that is read so unless it says otherwise.
fn entry(raw: &RawEntrySource, reading: Reading) -> Result<EntrySource, ConfigError> {
    let wrong = |reason| field("authorize.entries", reason);
    if raw.entry.is_empty() || raw.headers.is_empty() {
        let reason = "an entry needs a name and a header: write { entry = \"tenant\", headers = [\"x-tenant\"] }";
        return Err(wrong(reason.to_owned()));
    }
    if raw.headers.iter().any(String::is_empty) {
        return Err(wrong(
            "a header has an empty name: write one such as x-tenant".to_owned(),
        ));
    }
    for header in &raw.headers {
        check_header("authorize.entries", header)?;
    }
    let reading = match raw.reading.as_deref() {
        None => reading,
        Some("plain") => Reading::Plain,
        Some("method") => Reading::Method,
        Some("path") => Reading::Path,
        Some("address") => Reading::Address,
        Some("host") => Reading::Host,
        Some(other) => {
            let reason =
                format!("`{other}` is no reading: write plain, method, path, host or address");
            return Err(wrong(reason));
        }
    };
    Ok(EntrySource {
        entry: raw.entry.clone(),
        reading,
        headers: raw.headers.iter().map(|h| h.to_ascii_lowercase()).collect(),
    })
}
