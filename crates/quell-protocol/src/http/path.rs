//! Path: the part of a URI that rules match, in its normal spelling.

use std::borrow::Cow;

use quell_core::path::{PathError, PathReading, normalize};

/// The path of `uri` (which may be absolute), without its query, in its normal spelling.
pub(super) fn path_of(uri: &[u8], reading: PathReading) -> Result<Cow<'_, [u8]>, PathError> {
    let end = uri
        .iter()
        .position(|byte| *byte == b'?')
        .unwrap_or(uri.len());
    normalize(
        without_authority(uri.get(..end).unwrap_or_default()),
        reading,
    )
}

/// The part after `scheme://authority`.
fn without_authority(uri: &[u8]) -> &[u8] {
    let Some(colon) = uri.windows(3).position(|window| window == b"://") else {
        return uri;
    };
    let is_of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let (scheme, rest) = uri.split_at(colon);
    if !scheme.iter().all(is_of_scheme) {
        return uri;
    }
    let rest = rest.get(3..).unwrap_or_default();
    let slash = rest
        .iter()
        .position(|byte| *byte == b'/')
        .unwrap_or(rest.len());
    rest.get(slash..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (uri, expected) in [
            ("/login?next=/x", Ok("/login")),
            ("/login?a#top", Ok("/login")),
            ("/login#top", Err(PathError::Fragment)),
            ("/free#/../login", Err(PathError::Fragment)),
            ("", Ok("/")),
            ("?x", Ok("/")),
            ("/?x=%zz", Ok("/")),
            ("https://shop.example/login/?x", Ok("/login")),
            ("https://shop.example", Ok("/")),
            ("/a://b/c", Ok("/a:/b/c")),
            ("*", Ok("*")),
            ("login", Err(PathError::NoSlash)),
            ("a/b://c/login", Err(PathError::NoSlash)),
            ("/%2flogin", Err(PathError::EncodedSlash)),
        ] {
            let path = path_of(uri.as_bytes(), PathReading::default());
            let path = path.map(|path| String::from_utf8(path.into_owned()).unwrap());
            assert_eq!(path, expected.map(str::to_owned), "{uri}");
        }
    }
}
