//! Known entries: what the values of `method`, `path`, `host` and `remote_address` can look like.
//!
//! Gateways and the `tower` layer fill these entries, so a pattern that none of their values fits is
//! a mistake, and one that is spelt otherwise than they are read is read as they are.

use std::net::IpAddr;

use ipnet::IpNet;
use quell_core::path::{PathError, PathReading, normalize};
use quell_core::rule::{Pattern, Prefix};

use crate::hint;
use crate::path::Spot;
use crate::problem::Sink;

const METHOD: &str = "method";
const PATH: &str = "path";
const HOST: &str = "host";
const ADDRESS: &str = "remote_address";

/// The methods that clients send (RFC 9110, RFC 5789).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// What a text means as a value of an entry.
pub(super) struct Read {
    pub(super) patterns: Vec<Pattern>,
    /// What may surprise.
    pub(super) warning: Option<String>,
}

impl Read {
    fn one(pattern: Pattern) -> Self {
        Self {
            patterns: vec![pattern],
            warning: None,
        }
    }
}

/// The patterns that `text` means for `entry`; an error says what to write.
pub(super) fn patterns(entry: &str, text: &str) -> Result<Read, String> {
    match entry {
        METHOD => method(text),
        PATH => path(text),
        HOST => host(text),
        ADDRESS => address(text),
        _ => network(text).map(Read::one),
    }
}

/// How many bits of an address tell keys apart unless that is said.
pub(crate) fn default_prefix(entry: &str) -> Option<Prefix> {
    (entry == ADDRESS).then_some(Prefix::DEFAULT)
}

/// Warns of a name that is nearly a known one: a rule that waits for it never applies.
pub(super) fn check_name(entry: &str, spot: &Spot, sink: &mut Sink) {
    if let Some(meant) = meant(entry) {
        let entry = hint::shorten(entry);
        sink.warn(
            spot,
            format!(
                "no gateway sends an entry `{entry}`, did you mean `{meant}`? the rule applies to \
                 calls with an entry of that very name only"
            ),
        );
    }
}

fn meant(entry: &str) -> Option<&'static str> {
    let known = [METHOD, PATH, HOST, ADDRESS];
    if known.contains(&entry) || entry.len() > 2 * ADDRESS.len() {
        return None;
    }
    let lower = entry.to_ascii_lowercase().replace(['-', ' '], "_");
    // Of four letters many words are near.
    let is_near = |name: &str| match name.len() {
        ..=4 => name == lower,
        5..=8 => strsim::osa_distance(name, &lower) <= 1,
        _ => strsim::osa_distance(name, &lower) <= 3,
    };
    known.into_iter().find(|name| is_near(name))
}

fn method(text: &str) -> Result<Read, String> {
    match METHODS
        .iter()
        .find(|known| known.eq_ignore_ascii_case(text))
    {
        Some(known) if *known != text => Err(format!(
            "methods are in capitals, and `{text}` is none that clients send: write `{known}`"
        )),
        _ => Ok(Read::one(Pattern::parse(text))),
    }
}

/// A path in its normal spelling; `/api/*` is also `/api`, since `/api/` is.
fn path(text: &str) -> Result<Read, String> {
    let shown = hint::shorten(text);
    if let Some((before, _)) = text.split_once(['?', '#']) {
        let before = hint::shorten(before);
        return Err(format!(
            "a path has no query and no fragment, so nothing matches `{shown}`: write `{before}`"
        ));
    }
    if text.is_empty() {
        return Err("a path begins with `/`: write `/` for the root".to_owned());
    }
    let starts_with_star = text.starts_with('*') && text.len() > 1;
    let whole = if starts_with_star {
        format!("/{text}")
    } else {
        text.to_owned()
    };
    let reading = PathReading {
        keep_encoded_slashes: true,
        ..PathReading::default()
    };
    let read = normalize(whole.as_bytes(), reading).map_err(|error| match error {
        PathError::NoSlash => {
            format!("a path begins with `/`, so nothing matches `{shown}`: write `/{shown}`")
        }
        error => format!("nothing matches `{shown}`: {error}"),
    })?;
    let read = String::from_utf8_lossy(&read);
    let read = match read.strip_prefix('/') {
        Some(rest) if starts_with_star => rest,
        _ => &*read,
    };
    let is_same = read == text || !text.is_ascii();
    let warning = (!is_same).then(|| {
        let read = hint::shorten(read);
        format!("the paths of calls are read as `{read}`, and so is `{shown}`: write `{read}`")
    });
    let stem = read.strip_suffix("/*").filter(|stem| !stem.is_empty());
    let patterns = [Some(read), stem].into_iter().flatten();
    Ok(Read {
        patterns: patterns.map(Pattern::parse).collect(),
        warning,
    })
}

/// A host, without its port and in small letters.
fn host(text: &str) -> Result<Read, String> {
    let small = text.to_ascii_lowercase();
    let name = match small.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => &small,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let warning = (name != text).then(|| {
        let (name, text) = (hint::shorten(name), hint::shorten(text));
        format!(
            "hosts are read in small letters and without a port, and so is `{text}`: write `{name}`"
        )
    });
    Ok(Read {
        patterns: vec![Pattern::parse(name)],
        warning,
    })
}

/// An address is a network of one, so that all of its spellings match.
fn address(text: &str) -> Result<Read, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Read::one(Pattern::Network(IpNet::from(
            address.to_canonical(),
        ))));
    }
    let pattern = network(text)?;
    let shown = hint::shorten(text);
    let warning = match &pattern {
        Pattern::Exact(_) if looks_like_address(text) => {
            return Err(format!(
                "`{shown}` is no address, so nothing matches it: write one such as `10.0.0.1`, or \
                 a network such as `10.0.0.0/8`"
            ));
        }
        Pattern::Exact(_) => Some(format!(
            "`{shown}` is no address: write one such as `10.0.0.1`, or a network such as `10.0.0.0/8`"
        )),
        Pattern::Glob(_) if text.contains(|letter| letter != '*') => Some(format!(
            "`{shown}` is compared as text, and an address has many spellings: write a network such as `10.0.0.0/8`"
        )),
        Pattern::Glob(_) | Pattern::Network(_) => None,
    };
    Ok(Read {
        patterns: vec![pattern],
        warning,
    })
}

/// A pattern; what looks like a network must be one.
fn network(text: &str) -> Result<Pattern, String> {
    let pattern = Pattern::parse(text);
    let (Pattern::Exact(_), Some((address, bits))) = (&pattern, text.split_once('/')) else {
        return Ok(pattern);
    };
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) if looks_like_address(address) => {
            let (text, address) = (hint::shorten(text), hint::shorten(address));
            return Err(format!(
                "`{text}` is no network, `{address}` is no address: write a network such as \
                 `10.0.0.0/8`"
            ));
        }
        Err(_) => return Ok(pattern),
    };
    let (text, bits) = (hint::shorten(text), hint::shorten(bits));
    Err(format!(
        "`{text}` is no network, `{bits}` is not in 0..={most}: write a network such as `{address}/{}`",
        most / 2
    ))
}

/// Whether it is made as addresses are: four numbers, or several colons between hexadecimal digits.
fn looks_like_address(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let v4 = text.split('.').count() == 4 && text.split('.').all(is_number);
    let v6 = text.matches(':').count() > 1
        && text
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    v4 || v6
}
