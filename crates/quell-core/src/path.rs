//! Path: one spelling for all paths that web servers treat as the same.
//!
//! `/%6cogin`, `//login`, `/x/../login`, `/login/` and `/login;a=1` reach the same page as `/login`
//! in some applications. Taken literally, each would be a path of its own, and a caller could choose
//! one that no rule names. [`normalize`] gives all of them one spelling. A path that two servers
//! would resolve to two different pages has none: it is refused.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;

/// Options for reading paths. By default letters keep their case and encoded slashes are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathReading {
    /// True if `/LOGIN` is `/login`, for applications that treat them alike: ASCII letters become lower
    /// case.
    pub ignore_case: bool,
    /// True if `%2F` and `%5C` stay unchanged inside a segment instead of being refused: for applications
    /// that split a path before they decode it.
    pub keep_encoded_slashes: bool,
}

/// Reason why a path has no normal spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathError {
    /// The path does not begin with a slash.
    NoSlash,
    /// A `%` without two hexadecimal digits.
    BadEscape,
    /// `%00`.
    Nul,
    /// A space or control character that is not encoded.
    Control,
    /// `#`: some servers take it for the end of the path, others do not.
    Fragment,
    /// `%2F`: some servers take it for a slash, others do not.
    EncodedSlash,
    /// `\` or `%5C`: some servers take it for a slash, others do not.
    Backslash,
    /// `/..;a/`, `/a//../` or `/;a/b`: servers resolve it to different paths.
    Ambiguous,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSlash => "a path begins with `/`",
            Self::BadEscape => "a `%` stands without two hexadecimal digits: write it as `%25`",
            Self::Nul => "no path has a NUL: leave it out",
            Self::Control => {
                "a space or control character in a path is encoded: write `%20` for a space"
            }
            Self::Fragment => "a `#` ends the path to some servers only: write it as `%23`",
            Self::EncodedSlash => {
                "an encoded slash (`%2F`) is a slash to some servers only: write `/`"
            }
            Self::Backslash => "a backslash is a slash to some servers only: write `/`",
            Self::Ambiguous => {
                "servers resolve its dots, empty segments and `;` differently: write the path out"
            }
        })
    }
}

impl core::error::Error for PathError {}

/// The normal spelling of `path`, a URI's path without its query.
///
/// Escapes are decoded once; bytes that are not allowed in a path are encoded again, in capitals.
/// Runs of `/` become one, dot segments are resolved, and `;` with the rest of its segment is cut,
/// as is a slash at the end. `*`, which means a whole server, and the empty path, which is `/`, are
/// paths too. Cost: one pass over the path; a path that is normal already is not copied.
///
/// ```
/// use quell_core::path::{PathError, PathReading, normalize};
/// let read = |path: &'static str| normalize(path.as_bytes(), PathReading::default());
/// assert_eq!(read("/a/..//%6cogin;b=1/").unwrap().as_ref(), b"/login");
/// assert_eq!(read("/login%20").unwrap().as_ref(), b"/login%20");
/// assert_eq!(read("/%2flogin"), Err(PathError::EncodedSlash));
/// ```
///
/// # Errors
/// [`PathError`] if servers would not agree on its meaning.
pub fn normalize(path: &[u8], reading: PathReading) -> Result<Cow<'_, [u8]>, PathError> {
    if path.is_empty() {
        return Ok(Cow::Borrowed(b"/"));
    }
    if path == b"*" || is_normal(path, reading) {
        return Ok(Cow::Borrowed(path));
    }
    let Some(rest) = path.strip_prefix(b"/") else {
        return Err(PathError::NoSlash);
    };
    let mut segments = Segments::default();
    for segment in rest.split(|byte| *byte == b'/') {
        segments.add(&decode(segment, reading)?, reading)?;
    }
    segments.finish().map(Cow::Owned)
}

/// Returns true if nothing has to be changed: the common case.
fn is_normal(path: &[u8], reading: PathReading) -> bool {
    let stands = |byte: &u8| {
        *byte == b'/' || (is_plain(*byte) && !(reading.ignore_case && byte.is_ascii_uppercase()))
    };
    let is_suspicious = |pair: &[u8]| matches!(pair, b"//" | b"/.");
    path.first() == Some(&b'/')
        && path.iter().all(stands)
        && !path.windows(2).any(is_suspicious)
        && (path.len() == 1 || path.last() != Some(&b'/'))
}

/// Returns true if a byte needs no escape inside a segment (RFC 3986, `pchar`); `;` is cut before.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b'='
                | b':'
                | b'@'
        )
}

/// The bytes of a segment. A slash that stays encoded does not separate segments.
fn decode(segment: &[u8], reading: PathReading) -> Result<Vec<u8>, PathError> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment;
    while let [first, after @ ..] = rest {
        rest = after;
        let byte = match (first, after) {
            (b'\\', _) => return Err(PathError::Backslash),
            (b'#', _) => return Err(PathError::Fragment),
            (0..=b' ' | 0x7f, _) => return Err(PathError::Control),
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                escaped(*high, *low).ok_or(PathError::BadEscape)?
            }
            (b'%', _) => return Err(PathError::BadEscape),
            _ => *first,
        };
        match byte {
            0 => return Err(PathError::Nul),
            b'/' if !reading.keep_encoded_slashes => return Err(PathError::EncodedSlash),
            b'\\' if !reading.keep_encoded_slashes => return Err(PathError::Backslash),
            _ => bytes.push(byte),
        }
    }
    Ok(bytes)
}

/// The byte for two hexadecimal digits.
fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |letter: u8| char::from(letter).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// The path so far, and the segments in it.
#[derive(Default)]
struct Segments {
    text: Vec<u8>,
    stack: Vec<Segment>,
}

/// A segment of the path so far; an empty one has no bytes there.
struct Segment {
    start: usize,
    /// True if the segment is empty because it began with `;`.
    is_cut: bool,
}

impl Segments {
    fn add(&mut self, segment: &[u8], reading: PathReading) -> Result<(), PathError> {
        let end = segment.iter().position(|byte| *byte == b';');
        let name = end.and_then(|end| segment.get(..end)).unwrap_or(segment);
        match name {
            // For a server that does not know `;` these are names.
            b"." | b".." if end.is_some() => return Err(PathError::Ambiguous),
            b"." => {}
            b".." => self.leave()?,
            name => {
                self.stack.push(Segment {
                    start: self.text.len(),
                    is_cut: name.is_empty() && end.is_some(),
                });
                self.write(name, reading);
            }
        }
        Ok(())
    }

    /// Goes up one segment. Some servers have merged slashes by then, others leave an empty segment.
    fn leave(&mut self) -> Result<(), PathError> {
        let Some(left) = self.stack.pop() else {
            return Ok(());
        };
        if left.start == self.text.len() && left.start > 0 {
            return Err(PathError::Ambiguous);
        }
        self.text.truncate(left.start);
        Ok(())
    }

    fn write(&mut self, name: &[u8], reading: PathReading) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        if name.is_empty() {
            return;
        }
        self.text.push(b'/');
        for byte in name {
            match byte {
                byte if is_plain(*byte) && reading.ignore_case => {
                    self.text.push(byte.to_ascii_lowercase());
                }
                byte if is_plain(*byte) => self.text.push(*byte),
                byte => {
                    let digit = |half: u8| DIGITS.get(usize::from(half)).copied();
                    let (high, low) = (digit(byte >> 4), digit(byte & 15));
                    self.text.push(b'%');
                    self.text.extend([high, low].into_iter().flatten());
                }
            }
        }
    }

    fn finish(self) -> Result<Vec<u8>, PathError> {
        let Self { mut text, stack } = self;
        // A segment that is a name for one server and nothing for another changes the meaning of the
        // rest.
        if stack.iter().any(|cut| cut.is_cut && cut.start < text.len()) {
            return Err(PathError::Ambiguous);
        }
        if text.is_empty() {
            text.push(b'/');
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;

    fn read(path: &str, reading: PathReading) -> String {
        match normalize(path.as_bytes(), reading) {
            Ok(path) => String::from_utf8(path.into_owned()).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn spellings() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("*", "*"),
            ("/login", "/login"),
            ("//login", "/login"),
            ("/login/", "/login"),
            ("/login//", "/login"),
            ("/login/.", "/login"),
            ("/a/login/..", "/a"),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("/LOGIN", "/LOGIN"),
            ("/a//b///c", "/a/b/c"),
            ("/x/../login", "/login"),
            ("/x/%2e%2E/login", "/login"),
            ("/x/.%2e/./login", "/login"),
            ("/../../login", "/login"),
            ("//../login", "/login"),
            ("/a/..", "/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/login;a=1", "/login"),
            ("/login;a=1;b", "/login"),
            ("/login%3ba=1", "/login"),
            ("/a;x/login;y/", "/a/login"),
            ("/login/;x", "/login"),
            ("/;jsessionid=1", "/"),
            ("/;x/../login", "/login"),
            ("/login%20", "/login%20"),
            ("/login%0a", "/login%0A"),
            ("/%256cogin", "/%256cogin"),
            ("/a%2Cb!c", "/a,b!c"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a%3fb%23c", "/a%3Fb%23c"),
            ("/[x]", "/%5Bx%5D"),
        ] {
            assert_eq!(read(path, PathReading::default()), expected, "{path}");
            let again = read(expected, PathReading::default());
            assert_eq!(again, expected, "the spelling of {path} is its own");
        }
    }

    #[test]
    fn what_servers_disagree_about_is_refused() {
        for (path, expected) in [
            ("login", PathError::NoSlash),
            ("host:443", PathError::NoSlash),
            ("/100%", PathError::BadEscape),
            ("/%zz", PathError::BadEscape),
            ("/%6", PathError::BadEscape),
            ("/a%00", PathError::Nul),
            ("/a b", PathError::Control),
            ("/a\tb", PathError::Control),
            ("/free#/../login", PathError::Fragment),
            ("/%2flogin", PathError::EncodedSlash),
            ("/a/..%2Flogin", PathError::EncodedSlash),
            ("/a\\b", PathError::Backslash),
            ("/a%5cb", PathError::Backslash),
            ("/a/..;/login", PathError::Ambiguous),
            ("/a/.;x/login", PathError::Ambiguous),
            ("/a/%2e%2e%3b/login", PathError::Ambiguous),
            ("/login//..", PathError::Ambiguous),
            ("/api//./../login", PathError::Ambiguous),
            ("/api/;x/../login", PathError::Ambiguous),
            ("/users/;x/export", PathError::Ambiguous),
            ("/;x//login", PathError::Ambiguous),
        ] {
            let error = normalize(path.as_bytes(), PathReading::default());
            assert_eq!(error, Err(expected), "{path}");
        }
    }

    #[test]
    fn options() {
        let small = PathReading {
            ignore_case: true,
            ..PathReading::default()
        };
        let kept = PathReading {
            keep_encoded_slashes: true,
            ..PathReading::default()
        };
        for (path, reading, expected) in [
            ("/LOGIN", small, "/login"),
            ("/L%4Fgin/caf%C3%A9", small, "/login/caf%C3%A9"),
            ("/login", small, "/login"),
            ("/a%2fb", kept, "/a%2Fb"),
            ("/a/..%2flogin", kept, "/a/..%2Flogin"),
            ("/a%5cb", kept, "/a%5Cb"),
            ("/a\\b", kept, &PathError::Backslash.to_string()),
        ] {
            assert_eq!(read(path, reading), expected, "{path}");
        }
    }
}
