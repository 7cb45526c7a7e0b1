//! Gateway entries: checks patterns for `method`, `path`, `host` and `remote_address`.
//!
//! Gateways and the `tower` layer fill these entries in a normal spelling. A pattern that can match
//! none of their values is a mistake; a pattern in another spelling is normalized like the values.

use std::net::IpAddr;

use ipnet::IpNet;
use quell_core::address::canonical;
use quell_core::path::{PathError, PathReading, normalize};
use quell_core::rule::{Pattern, Prefix};

use crate::hint;
use crate::path::Span;
use crate::problem::Sink;

const METHOD: &str = "method";
const PATH: &str = "path";
const HOST: &str = "host";
const ADDRESS: &str = "remote_address";

/// The methods that clients send (RFC 9110, RFC 5789).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// The patterns of a text for an entry, and a warning if they may surprise the author of the rule.
pub(super) type PatternReading = (Vec<Pattern>, Option<String>);

/// The patterns of `text` for `entry`; an error says what to write.
pub(super) fn patterns(entry: &str, text: &str) -> Result<PatternReading, String> {
    match entry {
        METHOD => method(text),
        PATH => path(text),
        HOST => host(text),
        ADDRESS => address(text),
        _ => Ok((vec![network(text)?], None)),
    }
}

/// Reason why no caller can have this value of an entry, if it looks like an address and is not one; says
/// what to write.
#[must_use]
pub fn wrong_address(entry: &str, value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?;
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || c == ':');
    // In any of its spellings.
    let is_address = || {
        ["0.0.0.0/0", "::/0"]
            .iter()
            .any(|all| Pattern::parse(all).matches(value))
    };
    let is_wrong = entry == ADDRESS && begins && !is_address();
    is_wrong.then(|| {
        format!(
            "`{}` is not an address, so no caller has such a key: write one such as 10.0.0.1",
            hint::shorten(text)
        )
    })
}

/// Returns true if gateways fill this entry.
pub(crate) fn is_gateway_entry(entry: &str) -> bool {
    [METHOD, PATH, HOST, ADDRESS].contains(&entry)
}

/// Default number of bits of an address that are part of a key.
pub(crate) fn default_prefix(entry: &str) -> Option<Prefix> {
    (entry == ADDRESS).then_some(Prefix::DEFAULT)
}

/// Warns of a name that is close to a known one: such a rule never applies.
pub(super) fn check_name(entry: &str, span: &Span, sink: &mut Sink) {
    // A hundred thousand overrides have the same one.
    if sink.is_sound(entry) {
        return;
    }
    match name_warning(entry) {
        Some(warning) => sink.warn(span, warning),
        None => sink.note_sound(entry),
    }
}

/// Warning about the name of an entry.
fn name_warning(entry: &str) -> Option<String> {
    if let Some(meant) = meant_entry(entry) {
        let entry = hint::shorten(entry);
        Some(format!(
            "no gateway sends an entry `{entry}`, did you mean `{meant}`? the rule applies to calls \
             with an entry of that very name only"
        ))
    } else if is_header(entry) {
        let small = hint::shorten(&entry.to_ascii_lowercase());
        let entry = hint::shorten(entry);
        Some(format!(
            "gateways send names in small letters, so none of their calls has an entry `{entry}`: write `{small}`, \
             unless the callers name this entry themselves"
        ))
    } else {
        None
    }
}

/// Returns true for the name of a header field, written as in most documents.
fn is_header(entry: &str) -> bool {
    let has_capital = entry.contains(|letter: char| letter.is_ascii_uppercase());
    has_capital && (entry.contains('-') || matches!(entry, "Authorization" | "Cookie"))
}

/// The names of other programs for entries that gateways send.
const SYNONYMS: [(&str, &str); 4] = [
    (
        ADDRESS,
        "ip ip_address client_ip client_address remote_ip source_ip src_ip peer_ip addr x_forwarded_for x_real_ip",
    ),
    (PATH, "uri url route endpoint pth request_path request_uri"),
    (METHOD, "verb http_method request_method"),
    (HOST, "hostname authority vhost server_name http_host"),
];

/// The entry that gateways send and that the name `entry` of another program, or in another spelling, probably
/// means.
#[must_use]
pub fn meant_entry(entry: &str) -> Option<&'static str> {
    let known = [METHOD, PATH, HOST, ADDRESS];
    if known.contains(&entry) || entry.len() > 2 * ADDRESS.len() {
        return None;
    }
    let lower = entry.to_ascii_lowercase().replace(['-', ' '], "_");
    let mut synonyms = SYNONYMS.iter();
    if let Some((ours, _)) = synonyms.find(|(_, others)| hint::is_in(others, &lower)) {
        return Some(ours);
    }
    // Many words are similar to a word of four letters.
    let is_near = |name: &str| match name.len() {
        ..=4 => name == lower,
        5..=8 => strsim::osa_distance(name, &lower) <= 1,
        _ => strsim::osa_distance(name, &lower) <= 3,
    };
    known.into_iter().find(|name| is_near(name))
}

fn method(text: &str) -> Result<PatternReading, String> {
    let shown = hint::shorten(text);
    if let Some(list) = several(text, &[',', '|', ' ', '/']) {
        return Err(format!(
            "`{shown}` is not a method that clients send: write a list, `{list}`"
        ));
    }
    let capitals = text.to_ascii_uppercase();
    if matches!(capitals.as_str(), "ANY" | "ALL") {
        return Err(format!(
            "`{shown}` is not a method that clients send: leave `method` out for any"
        ));
    }
    let is_known = METHODS.contains(&capitals.as_str());
    if capitals != text && is_known {
        return Err(format!(
            "methods are in capitals, and `{shown}` is none that clients send: write `{capitals}`"
        ));
    }
    let warning = (capitals != text).then(|| {
        let capitals = hint::shorten(&capitals);
        format!(
            "methods of a gateway are read in capitals, so `{shown}` is none of them: write `{capitals}`, unless \
             the callers name this entry themselves"
        )
    });
    Ok((vec![Pattern::parse(text)], warning))
}

/// If the text has several values separated by any of these characters, the values as a list.
fn several(text: &str, between: &[char]) -> Option<String> {
    let parts = text.split(between).map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    (parts.len() > 1).then(|| format!("[{}]", hint::shorten(&parts.join(", "))))
}

/// A path in its normal spelling; `/api/*` also matches `/api`, because `/api/` is the same path.
fn path(text: &str) -> Result<PatternReading, String> {
    let shown = hint::shorten(text);
    if let Some(advice) = other_notation(text) {
        return Err(format!("nothing matches `{shown}`: {advice}"));
    }
    if let Some((before, _)) = text.split_once(['?', '#']) {
        let before = hint::shorten(before);
        return Err(format!(
            "a path has no query and no fragment, so nothing matches `{shown}`: write `{before}`"
        ));
    }
    if text.is_empty() {
        return Err("a path begins with `/`: write `/` for the root".to_owned());
    }
    let one_star = single_stars(text);
    let text = one_star.as_str();
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
        PathError::NoSlash => format!(
            "a path begins with `/`, so nothing matches `{shown}`: write `{}`",
            hint::shorten(&with_slash(text))
        ),
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
    let patterns = patterns.map(Pattern::parse).collect();
    Ok((patterns, warning))
}

/// The path that `text`, which lacks a slash at its beginning, probably means.
fn with_slash(text: &str) -> String {
    if matches!(text.to_ascii_lowercase().as_str(), "any" | "all") {
        return "\"*\"".to_owned();
    }
    // In ` /login`, `./login` and `!/login` there is no name before the slash.
    match text.split_once('/') {
        Some((before, rest)) if !before.contains(char::is_alphanumeric) => format!("/{rest}"),
        _ => format!("/{text}"),
    }
}

/// Text to write instead of a path in another program's notation.
fn other_notation(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once("://") {
        let path = rest.find('/').and_then(|slash| rest.get(slash..));
        let path = path.and_then(|path| path.split(['?', '#']).next());
        let path = hint::shorten(path.unwrap_or("/"));
        return Some(format!(
            "a path has no scheme and no host: write `{path}`, and the host as `host`"
        ));
    }
    for between in [",", "|", " "] {
        let parts: Vec<&str> = text.split(between).map(str::trim).collect();
        if parts.len() > 1 && parts.iter().all(|part| part.starts_with('/')) {
            let list = hint::shorten(&parts.join(", "));
            return Some(format!("one text is one path: write a list, `[{list}]`"));
        }
    }
    if text.starts_with('^') || text.contains(['\\', '[', '|']) {
        return Some(
            "it is not a regular expression, only `*` means something, any run of characters: write \
             a path such as `/api/*`"
                .to_owned(),
        );
    }
    let is_placeholder = |part: &&str| {
        let begins = part.starts_with('{') && part.ends_with('}');
        begins || (part.starts_with('<') && part.ends_with('>'))
    };
    text.split('/').any(|part| is_placeholder(&part)).then(|| {
        let parts = text.split('/');
        let parts = parts.map(|part| if is_placeholder(&part) { "*" } else { part });
        let path = hint::shorten(&parts.collect::<Vec<_>>().join("/"));
        format!(
            "names of parts mean nothing here, and `*` is any run of characters: write `{path}`"
        )
    })
}

/// The same glob without repeated stars.
fn single_stars(glob: &str) -> String {
    let mut characters: Vec<char> = glob.chars().collect();
    characters.dedup_by(|next, last| *next == '*' && *last == '*');
    characters.into_iter().collect()
}

/// A host, without its port and in lower case.
fn host(text: &str) -> Result<PatternReading, String> {
    let shown = hint::shorten(text);
    if text.contains('/') {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        let name = hint::shorten(rest.split('/').next().unwrap_or_default());
        return Err(format!(
            "a host has no scheme and no path, so nothing matches `{shown}`: write `{name}`"
        ));
    }
    if let Some(list) = several(text, &[',', '|', ' ']) {
        return Err(format!("`{shown}` is not a host: write a list, `{list}`"));
    }
    if let Ok(IpAddr::V6(address)) = text.parse::<IpAddr>() {
        return Err(format!(
            "a host that is an IPv6 address stands in brackets, so nothing matches `{shown}`: \
             write `\"[{address}]\"`"
        ));
    }
    let small = text.to_ascii_lowercase();
    let name = match small.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => &small,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let warning = if !text.is_ascii() {
        Some(format!(
            "browsers send such a name in ASCII, so hardly any call has `{shown}`: write it as \
             they do, beginning with `xn--`"
        ))
    } else if let Some(rest) = name.strip_prefix('.') {
        let rest = hint::shorten(rest);
        Some(format!(
            "no host begins with a dot: for all below it write `\"*.{rest}\"`"
        ))
    } else {
        (name != text).then(|| {
            let name = hint::shorten(name);
            format!(
                "hosts are read in small letters and without a port, and so is `{shown}`: write `{name}`"
            )
        })
    };
    Ok((vec![Pattern::parse(name)], warning))
}

/// An address becomes a network of one, so that all of its spellings match.
fn address(text: &str) -> Result<PatternReading, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let network = Pattern::Network(IpNet::from(canonical(address)));
        return Ok((vec![network], None));
    }
    let pattern = network(text)?;
    let shown = hint::shorten(text);
    let warning = match &pattern {
        Pattern::Exact(_) if looks_like_address(text) => {
            return Err(format!(
                "`{shown}` is not an address, so nothing matches it: write one such as `10.0.0.1`, or \
                 a network such as `10.0.0.0/8`"
            ));
        }
        Pattern::Exact(_) => Some(format!(
            "`{shown}` is not an address: write one such as `10.0.0.1`, or a network such as `10.0.0.0/8`"
        )),
        Pattern::Glob(_) if text.contains(|letter| letter != '*') => Some(format!(
            "`{shown}` is compared as text, and an address has many spellings: write a network such as `10.0.0.0/8`"
        )),
        Pattern::Network(network) if network.prefix_len() == 0 && text.starts_with("64:ff9b::") => {
            Some(format!(
                "`{shown}` is every IPv4 address, since an address of NAT64 is read as the IPv4 address in \
                 it: write the network that you mean, or `0.0.0.0/0`"
            ))
        }
        Pattern::Glob(_) | Pattern::Network(_) => None,
    };
    Ok((vec![pattern], warning))
}

/// A pattern; text that looks like a network must be one.
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
                "`{text}` is not a network, `{address}` is not an address: write a network such as \
                 `10.0.0.0/8`"
            ));
        }
        Err(_) => return Ok(pattern),
    };
    let (text, bits) = (hint::shorten(text), hint::shorten(bits));
    Err(format!(
        "`{text}` is not a network, `{bits}` is not in 0..={most}: write a network such as `{address}/{}`",
        most / 2
    ))
}

/// Returns true if the text has the form of an address: four numbers, or several colons between hexadecimal
/// digits.
fn looks_like_address(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let v4 = text.split('.').count() == 4 && text.split('.').all(is_number);
    let v6 = text.matches(':').count() > 1
        && text
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    v4 || v6
}
