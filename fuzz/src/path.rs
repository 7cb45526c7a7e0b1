//! Paths: whatever the bytes, a path has one spelling or is refused. Normalizing that spelling
//! changes nothing, and it contains nothing that a server could read differently. Other ways to
//! write the path have the same spelling.

use quell_core::path::{PathReading, normalize};

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(path: &[u8]) {
    for ignore_case in [false, true] {
        for keep_encoded_slashes in [false, true] {
            let reading = PathReading {
                ignore_case,
                keep_encoded_slashes,
            };
            check(path, reading);
        }
    }
}

fn check(path: &[u8], reading: PathReading) {
    let read = normalize(path, reading);
    if path.first() == Some(&b'/') {
        assert_eq!(normalize(&dotted(path), reading), read, "with dots");
    }
    if reading.ignore_case {
        let large = path.to_ascii_uppercase();
        assert_eq!(normalize(&large, reading), read, "in capitals");
    }
    let Ok(spelling) = read else {
        return;
    };
    let again = normalize(&spelling, reading);
    assert_eq!(again.as_ref(), Ok(&spelling), "read again");
    if path.first() != Some(&b'/') {
        assert!(matches!(path, b"" | b"*"), "no slash");
        return;
    }
    check_spelling(&spelling, reading);
    let slash = [path, b"/"].concat();
    for other in [slash, escaped(path, 1), escaped(path, 2)] {
        let told = String::from_utf8_lossy(&other).into_owned();
        assert_eq!(normalize(&other, reading).as_ref(), Ok(&spelling), "{told}");
    }
}

/// Checks that nothing in the spelling can be read in two ways.
fn check_spelling(spelling: &[u8], reading: PathReading) {
    let text = std::str::from_utf8(spelling).expect("a spelling is ASCII");
    assert!(text.starts_with('/'), "{text}");
    let strange = |c: char| !c.is_ascii_graphic() || matches!(c, ';' | '\\' | '?' | '#');
    assert!(!text.contains(strange), "{text}");
    if text != "/" {
        let mut segments = text.split('/').skip(1);
        assert!(
            segments.all(|one| !matches!(one, "" | "." | "..")),
            "{text}"
        );
    }
    let mut escapes = text.split('%');
    let plain = escapes.next().unwrap_or_default();
    let mut letters = plain.to_owned();
    for escape in escapes {
        let (digits, rest) = escape.split_at(2);
        let byte = u8::from_str_radix(digits, 16).expect("two digits");
        assert_eq!(format!("{byte:02X}"), digits, "{text}");
        let is_slash = matches!(byte, b'/' | b'\\');
        assert!(!is_slash || reading.keep_encoded_slashes, "{text}");
        assert!(!byte.is_ascii_alphanumeric() && byte != 0, "{text}");
        letters.push_str(rest);
    }
    let has_capitals = letters.contains(|c: char| c.is_ascii_uppercase());
    assert!(!(reading.ignore_case && has_capitals), "{text}");
}

/// The path with `/./` instead of each slash.
fn dotted(path: &[u8]) -> Vec<u8> {
    let mut other = Vec::with_capacity(3 * path.len());
    for byte in path {
        other.extend_from_slice(if *byte == b'/' {
            b"/./"
        } else {
            std::slice::from_ref(byte)
        });
    }
    other
}

/// The path with every `nth` byte percent-encoded that is not yet encoded and may be.
fn escaped(path: &[u8], nth: usize) -> Vec<u8> {
    let mut other = Vec::with_capacity(3 * path.len());
    let mut left = path;
    while let [byte, rest @ ..] = left {
        left = rest;
        match byte {
            b'%' => {
                // This is safe, because the path was accepted.
                let (digits, rest) = rest.split_at(2);
                other.push(b'%');
                other.extend_from_slice(digits);
                left = rest;
            }
            byte if *byte != b'/' && rest.len().is_multiple_of(nth) => {
                other.extend_from_slice(format!("%{byte:02x}").as_bytes());
            }
            byte => other.push(*byte),
        }
    }
    other
}
