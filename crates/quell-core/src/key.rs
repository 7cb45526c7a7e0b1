//! Key: a rule and the values it captures, as bytes that no other rule or values can have.
//!
//! If names were joined with a separator, `a_b` + `c` and `a` + `b_c` would be the same. Here every
//! part carries its length, so the bytes can be read back, and two keys are equal only if all parts
//! are.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

mod bytes;

pub use bytes::KeyBytes;

/// A key as bytes: first the scope, which is the same for all keys of a rule, and then the captured
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    bytes: &'a [u8],
    scope: usize,
}

impl<'a> Key<'a> {
    /// All bytes, which identify this key.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The part that all keys of the same rule share.
    #[must_use]
    pub fn scope(&self) -> &'a [u8] {
        self.bytes.get(..self.scope).unwrap_or(self.bytes)
    }

    /// The key with these bytes; the first `scope` bytes are its scope.
    #[must_use]
    pub const fn from_parts(bytes: &'a [u8], scope: usize) -> Self {
        Self { bytes, scope }
    }

    /// The captured value by which the rule keeps keys together, if there is one. Keys with the same
    /// value should be on one server.
    #[must_use]
    pub fn together(&self) -> Option<&'a [u8]> {
        let mut rest = Reader(self.bytes);
        if rest.byte()? != RULE {
            return None;
        }
        rest.part()?;
        rest.part()?;
        let (mut before, mut found) = (0, None);
        rest.captures(|_, is_together| {
            if is_together {
                found = Some(before);
            }
            before += 1;
        })?;
        for _ in 0..found? {
            rest.captured()?;
        }
        rest.captured()
    }
}

/// Calls `then` with the key of a limit that came with the call: any bytes are such a key.
#[inline]
pub fn with_ad_hoc<R>(key: &[u8], then: impl FnOnce(Key<'_>) -> R) -> R {
    const HEAD: usize = AD_HOC_SCOPE.len() + 5;
    // Keys of usual length need no allocation; the bytes are the same as below.
    let mut bytes = [0; 128];
    if let Some((head, rest)) = bytes.split_first_chunk_mut::<HEAD>()
        && let Some(place) = rest.get_mut(..key.len())
        && let Ok(length) = u8::try_from(key.len())
    {
        *head = [AD_HOC, BYTES, 0, 0, 0, length];
        place.copy_from_slice(key);
        let written = bytes.get(..HEAD + key.len()).unwrap_or_default();
        return then(Key::from_parts(written, AD_HOC_SCOPE.len()));
    }
    let mut bytes = KeyBytes::from_slice(AD_HOC_SCOPE);
    push_value(&mut bytes, Captured::Bytes(key));
    then(Key::from_parts(&bytes, AD_HOC_SCOPE.len()))
}

/// One captured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Captured<'a> {
    /// The entry is missing, and all such queries share one key.
    Missing,
    /// Any bytes.
    Bytes(&'a [u8]),
    /// An address, already cut to its prefix.
    Address(IpAddr),
}

const MISSING: u8 = 0;
const BYTES: u8 = 1;
const WHEN: u8 = 2;
const TOGETHER: u8 = 3;
const V4: u8 = 4;
const V6: u8 = 6;

/// The kind of scope that a key begins with.
const RULE: u8 = b'r';
const AD_HOC: u8 = b'a';

/// Appends `part` with its length.
pub(crate) fn push_part(bytes: &mut KeyBytes, part: &[u8]) {
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(part);
}

/// Way in which a value is captured: the entry, the number of bits for an address, and whether keys with
/// the same value are kept together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture<'a> {
    pub(crate) entry: &'a str,
    pub(crate) prefix: Option<(u8, u8)>,
    pub(crate) is_together: bool,
}

/// The scope of a rule: its domain, its name, the conditions of an override with keys of its own, and
/// how each value is captured.
pub(crate) fn rule_scope<'a>(
    domain: &str,
    rule: &str,
    when: Option<&[u8]>,
    per: impl Iterator<Item = Capture<'a>>,
) -> KeyBytes {
    let mut bytes = KeyBytes::new();
    bytes.push(RULE);
    push_part(&mut bytes, domain.as_bytes());
    push_part(&mut bytes, rule.as_bytes());
    if let Some(when) = when {
        bytes.push(WHEN);
        push_part(&mut bytes, when);
    }
    for per in per {
        if per.is_together {
            bytes.push(TOGETHER);
        }
        match per.prefix {
            None => bytes.push(BYTES),
            Some((v4, v6)) => bytes.extend_from_slice(&[V6, v4, v6]),
        }
        push_part(&mut bytes, per.entry.as_bytes());
    }
    bytes.push(MISSING);
    bytes
}

/// The scope of limits that come with the call; no rule can have it.
pub(crate) const AD_HOC_SCOPE: &[u8] = &[AD_HOC];

/// Appends a captured value.
pub(crate) fn push_value(bytes: &mut KeyBytes, value: Captured<'_>) {
    match value {
        Captured::Missing => bytes.push(MISSING),
        Captured::Bytes(value) => {
            bytes.push(BYTES);
            push_part(bytes, value);
        }
        Captured::Address(IpAddr::V4(address)) => {
            bytes.push(V4);
            bytes.extend_from_slice(&address.octets());
        }
        Captured::Address(IpAddr::V6(address)) => {
            bytes.push(V6);
            bytes.extend_from_slice(&address.octets());
        }
    }
}

/// A key read back into its parts, for lists and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    /// The rule's domain; empty for limits that come with the call.
    pub domain: String,
    /// The rule's name; empty for limits that come with the call.
    pub rule: String,
    /// Entry name and value, `None` if the entry was missing. Bytes that are not UTF-8 are written as
    /// `\xNN`.
    pub values: Vec<(String, Option<String>)>,
}

impl KeyName {
    /// Reads the bytes of a [`Key`] back; `None` if they are not a key.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let kind = rest.byte()?;
        if kind == AD_HOC {
            let values = Vec::from([("key".to_string(), rest.value()?)]);
            return rest.0.is_empty().then_some(Self {
                domain: String::new(),
                rule: String::new(),
                values,
            });
        }
        if kind != RULE {
            return None;
        }
        let domain = escape(rest.part()?);
        let rule = escape(rest.part()?);
        let mut names = Vec::new();
        rest.captures(|entry, _| names.push(escape(entry)))?;
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push((name, rest.value()?));
        }
        rest.0.is_empty().then_some(Self {
            domain,
            rule,
            values,
        })
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.values.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            match value {
                Some(value) => write!(f, "{name}={value}")?,
                None => write!(f, "{name}?")?,
            }
        }
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn part(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(usize::try_from(length).ok()?)
    }

    /// Skips the scope. Returns a copy of it, to which values are added.
    fn begin_copy(&mut self) -> Option<KeyBytes> {
        let bytes = self.0;
        self.scope()?;
        let (scope, _) = bytes.split_at_checked(bytes.len() - self.0.len())?;
        Some(KeyBytes::from_slice(scope))
    }

    /// Skips the scope.
    fn scope(&mut self) -> Option<()> {
        match self.byte()? {
            AD_HOC => return Some(()),
            RULE => {}
            _ => return None,
        }
        self.part()?;
        self.part()?;
        self.captures(|_, _| {})
    }

    /// Reads a rule's scope after its name: the entries that it captures, and whether keys with the
    /// same value of each are kept together.
    fn captures(&mut self, mut visit: impl FnMut(&'a [u8], bool)) -> Option<()> {
        let mut is_together = false;
        loop {
            match self.byte()? {
                MISSING => return Some(()),
                WHEN => {
                    self.part()?;
                    continue;
                }
                TOGETHER => {
                    is_together = true;
                    continue;
                }
                BYTES => {}
                V6 => {
                    self.take(2)?;
                }
                _ => return None,
            }
            visit(self.part()?, is_together);
            is_together = false;
        }
    }

    /// A captured value in its encoded form.
    fn captured(&mut self) -> Option<&'a [u8]> {
        let all = self.0;
        let length = match self.byte()? {
            MISSING => 1,
            BYTES => 5 + self.part()?.len(),
            V4 => 5,
            V6 => 17,
            _ => return None,
        };
        let (value, rest) = all.split_at_checked(length)?;
        self.0 = rest;
        Some(value)
    }

    fn value(&mut self) -> Option<Option<String>> {
        Some(match self.byte()? {
            MISSING => None,
            BYTES => Some(escape(self.part()?)),
            V4 => Some(Ipv4Addr::from(self.array::<4>()?).to_string()),
            V6 => Some(Ipv6Addr::from(self.array::<16>()?).to_string()),
            _ => return None,
        })
    }
}

/// Bytes of a captured value that a shortened key keeps.
const MAX_SHOWN: usize = 64;

/// The bytes of a [`Key`] with long values shortened. Each of those is followed by `mark`, which
/// should distinguish values with the same beginning; [`KeyName::parse`] can read the result. Bytes
/// that are not a key stay unchanged.
#[must_use]
pub fn shortened<'a>(bytes: &'a [u8], mark: &str) -> Cow<'a, [u8]> {
    match shortened_values(bytes, mark) {
        Some(short) if short.len() < bytes.len() => Cow::Owned(short.to_vec()),
        _ => Cow::Borrowed(bytes),
    }
}

/// The bytes of a [`Key`] with `mark` in place of each value, for lists that must not name callers;
/// [`KeyName::parse`] can read the result. Bytes that are not a key are replaced as a whole.
#[must_use]
pub fn masked(bytes: &[u8], mark: &str) -> Vec<u8> {
    masked_values(bytes, mark).map_or_else(|| mark.as_bytes().to_vec(), |masked| masked.to_vec())
}

fn masked_values(bytes: &[u8], mark: &str) -> Option<KeyBytes> {
    let mut rest = Reader(bytes);
    let mut masked = rest.begin_copy()?;
    while !rest.0.is_empty() {
        rest.captured()?;
        push_value(&mut masked, Captured::Bytes(mark.as_bytes()));
    }
    Some(masked)
}

fn shortened_values(bytes: &[u8], mark: &str) -> Option<KeyBytes> {
    let mut rest = Reader(bytes);
    let mut short = rest.begin_copy()?;
    while !rest.0.is_empty() {
        let captured = rest.captured()?;
        let value = captured
            .strip_prefix(&[BYTES])
            .and_then(|part| part.get(4..));
        match value.filter(|value| value.len() > MAX_SHOWN + mark.len() + 4) {
            Some(value) => {
                let is_inside =
                    |end: &usize| value.get(*end).is_some_and(|byte| byte & 0xc0 == 0x80);
                let end = (MAX_SHOWN - 3..=MAX_SHOWN)
                    .rev()
                    .find(|end| !is_inside(end));
                let head = value.get(..end.unwrap_or(MAX_SHOWN))?;
                short.push(BYTES);
                push_part(&mut short, &[head, b"...#", mark.as_bytes()].concat());
            }
            None => short.extend_from_slice(captured),
        }
    }
    Some(short)
}

/// `bytes` as text that shows every byte.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns true if a character can be shown to a person unchanged: it does not move the cursor, begin an
/// escape sequence, or change the direction of text, and it is visible.
#[must_use]
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Text from a stranger, made safe for a person to read: characters that are not
/// [printable](is_printable) are written as `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_printable(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per(entry: &str, prefix: Option<(u8, u8)>) -> Capture<'_> {
        Capture {
            entry,
            prefix,
            is_together: false,
        }
    }

    #[test]
    fn what_a_stranger_wrote_is_shown_and_does_nothing() {
        assert!(matches!(printable("caf\u{e9} \u{4f60}"), Cow::Borrowed(_)));
        let hostile = "a\u{1b}[2J\r\n\u{9b}1m\u{7f}\u{202e}b\u{200b}";
        let shown = "a\\u{1b}[2J\\u{d}\\u{a}\\u{9b}1m\\u{7f}\\u{202e}b\\u{200b}";
        assert_eq!(printable(hostile), shown);
    }

    #[test]
    fn a_masked_key_has_its_rule_and_no_value() {
        let per = [per("user", None), per("net", Some((24, 64)))];
        let mut bytes = rule_scope("d", "r", Some(b"when"), per.into_iter());
        push_value(&mut bytes, Captured::Bytes(b"eve"));
        push_value(&mut bytes, Captured::Missing);
        let name = KeyName::parse(&masked(&bytes, "0f")).unwrap();
        assert_eq!((&*name.domain, &*name.rule), ("d", "r"));
        assert_eq!(name.to_string(), "user=0f net=0f");
        let ad_hoc = with_ad_hoc(b"eve", |key| masked(key.as_bytes(), "0f"));
        assert_eq!(KeyName::parse(&ad_hoc).unwrap().to_string(), "key=0f");
        assert_eq!(masked(b"eve", "0f"), b"0f");
    }

    #[test]
    fn a_long_value_is_cut_and_marked_and_the_key_stays_one() {
        let per = [per("user", None), per("net", Some((24, 64)))];
        let mut bytes = rule_scope("d", "r", Some(b"when"), per.into_iter());
        let scope = bytes.len();
        push_value(
            &mut bytes,
            Captured::Bytes("\u{e9}".repeat(4_000).as_bytes()),
        );
        push_value(
            &mut bytes,
            Captured::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        );
        let short = shortened(&bytes, "07");
        assert!(short.len() < 150 + scope, "{}", short.len());
        let name = KeyName::parse(&short).unwrap();
        let value = name.values[0].1.clone().unwrap();
        assert_eq!(value, "\u{e9}".repeat(MAX_SHOWN / 2) + "...#07");
        assert_eq!(name.values[1].1.as_deref(), Some("127.0.0.1"));
        assert_eq!(shortened(&short, "08"), short, "it is short by now");
        let broken = &bytes[..bytes.len() - 1];
        assert_eq!(shortened(broken, "07"), broken);
    }

    #[test]
    fn what_lies_together_is_told_by_one_value() {
        let mut tenant = per("tenant", None);
        tenant.is_together = true;
        let key = |rule, per: &[Capture<'_>], values: &[Captured<'_>]| {
            let mut bytes = rule_scope("shop", rule, Some(b"when"), per.iter().copied());
            for value in values {
                push_value(&mut bytes, *value);
            }
            assert!(KeyName::parse(&bytes).is_some());
            Key::from_parts(&bytes, 0).together().map(<[u8]>::to_vec)
        };
        let acme = Captured::Bytes(b"acme");
        let address = Captured::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let alone = key("one", &[tenant], &[acme]);
        assert!(alone.is_some());
        let network = per("address", Some((24, 64)));
        for first in [address, Captured::Missing, Captured::Bytes(b"x")] {
            assert_eq!(key("two", &[network, tenant], &[first, acme]), alone);
        }
        assert_ne!(key("one", &[tenant], &[Captured::Missing]), alone);
        assert_eq!(key("one", &[network], &[acme]), None);
        with_ad_hoc(b"acme", |key| assert_eq!(key.together(), None));
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let per = [per("user", None), per("remote_address", Some((24, 64)))];
        let mut bytes = rule_scope("shop", "login", None, per.into_iter());
        let scope = bytes.len();
        push_value(&mut bytes, Captured::Bytes(b"a\xff"));
        push_value(
            &mut bytes,
            Captured::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0))),
        );
        let name = KeyName::parse(&bytes).unwrap();
        assert_eq!(
            (name.domain.as_str(), name.rule.as_str()),
            ("shop", "login")
        );
        assert_eq!(name.to_string(), "user=a\\xff remote_address=10.0.0.0");
        assert_eq!(Key::from_parts(&bytes, scope).scope(), &bytes[..scope]);
        for end in 0..bytes.len() {
            assert_eq!(KeyName::parse(&bytes[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn short_and_long_keys_are_written_alike() {
        let longest = [b'k'; 300];
        for length in 0..=longest.len() {
            let key = &longest[..length];
            let mut expected = KeyBytes::from_slice(AD_HOC_SCOPE);
            push_value(&mut expected, Captured::Bytes(key));
            with_ad_hoc(key, |key| {
                assert_eq!(key.as_bytes(), &*expected);
                assert_eq!(key.scope(), AD_HOC_SCOPE);
            });
        }
    }

    #[test]
    fn separators_do_not_mix_keys_up() {
        let key = |domain: &str, rule: &str, values: &[&[u8]]| {
            let per = values.iter().map(|_| per("k", None));
            let mut bytes = rule_scope(domain, rule, None, per);
            for value in values {
                push_value(&mut bytes, Captured::Bytes(value));
            }
            bytes
        };
        assert_ne!(key("a_b", "c", &[]), key("a", "b_c", &[]));
        assert_ne!(key("d", "r", &[b"a", b"b"]), key("d", "r", &[b"ab", b""]));
        assert_ne!(key("d", "r", &[b"a\0b"]), key("d", "r", &[b"a", b"b"]));
        assert_ne!(key("d", "r", &[b"x"]), key("d", "rx", &[b""]));
    }
}
