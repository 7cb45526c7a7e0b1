//! Authorize: the settings that say which headers `/v1/authorize` believes.

use ipnet::IpNet;
use quell_core::forwarded::{MAX_HOPS, ProxyTrust};
use quell_protocol::http::{AuthorizeMap, EntrySource, Reading};
use quell_rules::one_of;
use serde::{Deserialize, Serialize};

use super::{ConfigError, RawConfig, SettingValue, field, settings};

/// Most entries that a map may name: each is looked for among the headers of every request.
const MAX_ENTRIES: usize = 32;

settings! {
    /// Headers that `/v1/authorize` makes entries of, as written.
    AuthorizeSettings;
    /// Headers that `/v1/authorize` makes entries of.
    RawAuthorize: |raw: RawConfig| raw.authorize.get_or_insert_default(), "authorize.";

    "Gateways (/v1/authorize)" {
        /// The gateway whose headers describe the call: original (nginx, X-Original-URI), forwarded
        /// (Traefik and Caddy, X-Forwarded-Uri), or any of them
        gateway<KIND>: String = "any".to_owned();
        /// Turn headers with this prefix into entries: with x-quell-entry-, the header
        /// "X-Quell-Entry-Tenant: acme" becomes tenant=acme. An empty prefix turns this off
        prefix<PREFIX>: String = "x-quell-entry-".to_owned(), check_header;
        /// Entries made of other headers, before or in place of the gateway's.
        entries: EntrySources = EntrySources::default();
        /// Read paths in lower case, for applications that treat /LOGIN and /login alike
        ignore_case<BOOL>: bool = false;
        /// Treatment of an encoded slash (%2F or %5C) in a path: refuse the call with 400, or keep it, for
        /// applications that split /files/a%2Fb into "files" and "a%2Fb"
        encoded_slashes<WORD>: String = "refuse".to_owned();
        /// An address, or a network such as 10.0.0.0/8, of a proxy between callers and gateway: the caller
        /// is the last address in X-Forwarded-For that is not one of these; may be repeated (in the
        /// variable: with commas)
        ///
        /// Default none: the address that the gateway names last is the caller's.
        trusted_proxies<NETWORK>: Vec<IpNet> = Vec::new();
        /// Number of proxies between callers and gateway, at most 32: so many addresses at the end of
        /// X-Forwarded-For are skipped, whatever they are, or only those in trusted_proxies if it is set.
        /// 0: as many as trusted_proxies has
        hops<N>: usize = 0, check_hops;
    }
}

/// An entry and the headers that may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawEntrySource {
    /// The entry's name.
    pub entry: String,
    /// The headers; the first that is there counts.
    pub headers: Vec<String>,
    /// Reading of the value: `plain`, `method`, `path`, `host` or `address`. Default that of the entry
    /// whose place it takes, else `plain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
}

/// Entries and their headers, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntrySources(pub Vec<RawEntrySource>);

impl SettingValue for EntrySources {
    type Raw = Self;

    fn read(_: &'static str, raw: &Self) -> Result<Self, ConfigError> {
        Ok(raw.clone())
    }

    fn to_raw(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// Headers that `/v1/authorize` makes entries of. Default: those of nginx, Traefik and Caddy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authorize {
    /// The map that requests are read by.
    pub map: AuthorizeMap,
    /// Settings from which it was made.
    pub settings: AuthorizeSettings,
}

impl SettingValue for Authorize {
    type Raw = RawAuthorize;

    fn read(_: &'static str, raw: &RawAuthorize) -> Result<Self, ConfigError> {
        let settings = raw.read()?;
        let map = map(&settings)?;
        Ok(Self { map, settings })
    }

    fn to_raw(&self) -> Option<RawAuthorize> {
        Some(self.settings.to_raw())
    }
}

/// The map that the settings mean.
fn map(settings: &AuthorizeSettings) -> Result<AuthorizeMap, ConfigError> {
    let maps = [
        ("any", AuthorizeMap::default as fn() -> AuthorizeMap),
        ("original", AuthorizeMap::original),
        ("forwarded", AuthorizeMap::forwarded),
    ];
    let wrong = |reason| field("authorize.gateway", reason);
    let mut map = one_of("gateway", &settings.gateway, &maps).map_err(wrong)?();
    let prefix = settings.prefix.to_ascii_lowercase();
    map.prefix = (!prefix.is_empty()).then_some(prefix);
    map.path.ignore_case = settings.ignore_case;
    let words = [("refuse", false), ("keep", true)];
    let keeps = one_of("value", &settings.encoded_slashes, &words);
    let wrong = |reason| field("authorize.encoded_slashes", reason);
    map.path.keep_encoded_slashes = keeps.map_err(wrong)?;
    map.proxies = match (settings.trusted_proxies.as_slice(), settings.hops) {
        ([], hops) => ProxyTrust::nearest(hops),
        (networks, 0) => ProxyTrust::networks(networks.to_vec()),
        (networks, hops) => ProxyTrust::networks(networks.to_vec()).at_most(hops),
    };
    let entries = &settings.entries.0;
    for (index, raw) in entries.iter().enumerate() {
        let mut before = entries.iter().take(index);
        if before.any(|before| before.entry == raw.entry) {
            let name = &raw.entry;
            let reason = format!("`{name}` appears twice: write one, with all of its headers");
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

/// Refuses more proxies than are followed.
fn check_hops(hops: &usize) -> Result<(), String> {
    match *hops <= MAX_HOPS {
        true => Ok(()),
        false => Err(format!(
            "at most {MAX_HOPS} proxies are followed: write how many stand between callers and gateway, such as 1"
        )),
    }
}

/// Refuses a name that no header can have.
fn check_header(header: &str) -> Result<(), String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
    match header.bytes().all(is_of_name) {
        true => Ok(()),
        false => Err(format!(
            "`{header}` is not the name of a header: write one such as x-tenant"
        )),
    }
}

/// An entry, and how it is read unless it says so.
fn entry(raw: &RawEntrySource, default: Reading) -> Result<EntrySource, ConfigError> {
    let wrong = |reason| field("authorize.entries", reason);
    if raw.entry.is_empty() || raw.headers.is_empty() {
        let reason = "an entry needs a name and a header: write { entry = \"tenant\", headers = [\"x-tenant\"] }";
        return Err(wrong(reason.to_owned()));
    }
    if raw.headers.iter().any(String::is_empty) {
        let reason = "a header has an empty name: write one such as x-tenant";
        return Err(wrong(reason.to_owned()));
    }
    for header in &raw.headers {
        check_header(header).map_err(wrong)?;
    }
    let words = [
        ("plain", Reading::Plain),
        ("method", Reading::Method),
        ("path", Reading::Path),
        ("host", Reading::Host),
        ("address", Reading::Address),
    ];
    let reading = raw
        .reading
        .as_deref()
        .map(|word| one_of("reading", word, &words));
    let reading = reading.transpose().map_err(wrong)?.unwrap_or(default);
    Ok(EntrySource {
        entry: raw.entry.clone(),
        reading,
        headers: raw.headers.iter().map(|h| h.to_ascii_lowercase()).collect(),
    })
}
