//! Path: of a URI what rules match on, the same for spellings that a web server takes as one.
//!
//! A gateway that routes `/%6cogin`, `//login` and `/x/../login` to `/login` would else let a
//! caller pass by a rule for `/login`.

use std::borrow::Cow;

use crate::hex;

/// The path of `uri` (which may be absolute), without query and fragment, normalised: escapes of
/// unreserved characters are undone, other escapes are in capitals (RFC 3986 section 6.2.2), runs
/// of `/` are one, and dot segments are resolved.
pub(super) fn path_of(uri: &[u8]) -> Cow<'_, [u8]> {
    let end = uri
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#'))
        .unwrap_or(uri.len());
    let path = without_authority(uri.get(..end).unwrap_or_default());
    if path.is_empty() {
        return Cow::Borrowed(b"/");
    }
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(resolve(&unescape(path)))
}

/// What follows `scheme://authority`.
fn without_authority(uri: &[u8]) -> &[u8] {
    if uri.first() == Some(&b'/') {
        return uri;
    }
    let Some(scheme) = uri.windows(3).position(|window| window == b"://") else {
        return uri;
    };
    let rest = uri.get(scheme + 3..).unwrap_or_default();
    let slash = rest
        .iter()
        .position(|byte| *byte == b'/')
        .unwrap_or(rest.len());
    rest.get(slash..).unwrap_or_default()
}

/// Whether nothing has to be changed: the common case, in which nothing is copied.
fn is_normal(path: &[u8]) -> bool {
    let suspicious = |window: &[u8]| matches!(window, b"//" | b"/.");
    !path.contains(&b'%') && !path.windows(2).any(suspicious)
}

fn unescape(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, after @ ..] = rest {
        rest = after;
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex::byte(*high, *low).map(|byte| (byte, *high, *low)),
            _ => None,
        };
        let Some((byte, high, low)) = escaped else {
            text.push(*first);
            continue;
        };
        rest = after.get(2..).unwrap_or_default();
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(byte);
        } else {
            text.extend([b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]);
        }
    }
    text
}

/// Takes out empty and dot segments.
fn resolve(path: &[u8]) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut is_directory = false;
    for segment in path.split(|byte| *byte == b'/') {
        is_directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut text = Vec::with_capacity(path.len());
    for segment in segments {
        text.push(b'/');
        text.extend_from_slice(segment);
    }
    if is_directory || text.is_empty() {
        text.push(b'/');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (uri, expected) in [
            ("/login", "/login"),
            ("/login?next=/x", "/login"),
            ("/login#top", "/login"),
            ("/", "/"),
            ("", "/"),
            ("?x", "/"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("/a%2fb", "/a%2Fb"),
            ("/100%", "/100%"),
            ("/%zz", "/%zz"),
            ("//login", "/login"),
            ("/a//b///c", "/a/b/c"),
            ("/x/../login", "/login"),
            ("/x/%2e%2e/login", "/login"),
            ("/./login", "/login"),
            ("/../../login", "/login"),
            ("/a/..", "/"),
            ("/a/", "/a/"),
            ("/a//", "/a/"),
            ("/a/.", "/a/"),
            ("/.well-known/x", "/.well-known/x"),
            ("https://shop.example/login?x", "/login"),
            ("https://shop.example", "/"),
            ("*", "*"),
        ] {
            let path = path_of(uri.as_bytes());
            assert_eq!(String::from_utf8_lossy(&path), expected, "{uri}");
        }
    }
}
