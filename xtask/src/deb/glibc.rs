//! The C library that a binary needs, by the versions of the symbols that it names.

use anyhow::{Context, Result};

const PREFIX: &[u8] = b"GLIBC_";

/// The highest version of the GNU C library among the symbols of a binary, such as `2.34`.
///
/// # Errors
///
/// When it names none: then it is no program for this library.
pub(crate) fn needed(binary: &[u8]) -> Result<String> {
    let versions = binary
        .windows(PREFIX.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == PREFIX)
        .filter_map(|(at, _)| version(binary.get(at + PREFIX.len()..)?));
    let (major, minor) = versions
        .max()
        .context("the binary names no GNU C library")?;
    Ok(format!("{major}.{minor}"))
}

/// Major and minor number at the beginning of `bytes`.
fn version(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_of_version = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
    let text: Vec<u8> = bytes.iter().take_while(is_of_version).copied().collect();
    let text = String::from_utf8(text).ok()?;
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_counts() {
        let binary = b"..GLIBC_2.4\0GLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.2.5\0";
        assert_eq!(needed(binary).unwrap(), "2.34");
        assert!(needed(b"no library").is_err());
    }
}
